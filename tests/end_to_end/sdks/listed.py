"""The calls of OpenAI's Python client that must work unchanged: by route, and by how they are made.

`wrong` are refused, `cancelled` are left in the middle. The files of `scripts/` make them.
"""

LISTED = {
    "models": {
        "blocking": """
            models_are_listed a_model_is_found_by_its_name
        """,
        "async": "models_are_listed_later",
        "wrong": "a_model_that_is_not_there_is_not_found nobody_there",
    },
    "chat.completions": {
        "blocking": """
            an_answer a_usage_adds_up a_raw_answer_with_its_headers a_streamed_raw_answer
            max_completion_tokens_is_its_newer_name several_answers a_stop_string
            several_stop_strings logprobs a_bias a_seed_says_the_same_again penalties
            a_conversation a_developer_speaks a_message_in_parts
            words_about_who_asks_change_nothing
        """,
        "async": "an_answer_later ten_at_once",
        "streamed": """
            a_stream a_stream_with_its_usage a_stream_later a_stream_by_its_helper
            several_answers_in_a_stream logprobs_in_a_stream
        """,
        "cancelled": """
            a_stream_that_is_closed a_stream_that_is_closed_before_its_first_chunk
            a_stream_that_is_left_by_its_block a_helper_that_is_left_by_its_block
            calls_that_take_too_long_or_are_cancelled a_stream_that_is_closed_later
            a_stream_whose_task_is_cancelled
        """,
        "wrong": """
            a_model_that_nobody_serves a_model_that_nobody_serves_later a_wrong_key
            a_wrong_key_later a_stream_that_is_refused_before_it_begins no_messages
            messages_that_are_a_text a_role_that_nobody_has a_picture
            an_output_of_a_tool_that_was_not_called a_temperature_that_is_none
            a_temperature_in_words no_tokens_at_all too_many_answers too_many_logprobs
            a_form_that_the_model_cannot_be_held_to a_form_without_its_schema
            functions_of_long_ago tools_of_a_model_that_knows_none
            a_choice_of_a_tool_that_is_not_there an_answer_that_is_to_be_kept
            a_prompt_that_is_too_long a_field_that_nobody_knows a_body_that_is_no_json
            a_body_that_is_too_large a_method_that_is_not_there
        """,
    },
    "completions": {
        "blocking": """
            a_text_goes_on token_ids_go_on a_text_goes_on_in_several_ways a_text_with_logprobs
            a_text_is_short_unless_it_is_to_be_long several_texts_go_on
            token_ids_of_several_texts_go_on a_text_is_echoed a_text_is_only_echoed
        """,
        "async": "a_text_goes_on_later",
        "streamed": "a_text_goes_on_in_a_stream",
        "cancelled": "a_text_stream_that_is_closed",
        "wrong": """
            a_text_between_two_others an_empty_prompt numbers_that_are_no_token_ids
            a_text_of_a_model_that_nobody_serves_later
        """,
    },
    "embeddings": {
        "blocking": """
            a_vector vectors_are_the_same_alone_and_together a_vector_as_floats a_shorter_vector
            vectors_of_token_ids
        """,
        "async": "a_vector_later",
        "cancelled": "vectors_whose_task_is_cancelled",
        "wrong": """
            more_dimensions_than_there_are a_vector_of_nothing texts_and_token_ids_together
            too_many_texts an_encoding_that_nobody_knows
            vectors_of_a_model_that_nobody_serves_later
        """,
    },
    "responses": {
        "blocking": """
            an_answer an_answer_is_read_again an_answer_in_the_background an_answer_follows_another
            items_are_a_conversation nothing_is_kept a_response_is_removed logprobs
            tokens_are_counted a_key_asks_once words_about_who_asks_change_nothing
        """,
        "async": "an_answer_later an_answer_in_the_background_later",
        "streamed": """
            a_stream a_stream_later a_stream_is_read_again_from_any_event a_stream_by_its_helper
            a_stream_goes_on_by_its_helper a_stream_of_which_nothing_is_kept
            a_stream_that_is_closed_goes_on
        """,
        "cancelled": """
            a_background_answer_is_stopped an_answer_is_stopped_while_it_is_streamed
            a_background_answer_is_stopped_later a_stream_that_is_not_kept_is_closed
            an_answer_that_is_not_kept_is_given_up
        """,
        "wrong": """
            a_field_that_cannot_be_honoured a_model_that_nobody_serves a_response_that_nobody_made
        """,
    },
    "responses over a websocket": {
        "blocking": "an_answer_over_a_websocket two_lanes_and_what_follows_in_one",
        "async": "an_answer_that_is_awaited",
        "cancelled": "an_answer_is_steered",
        "wrong": "what_is_refused_leaves_the_connection_open a_key_that_nobody_has",
    },
    "conversations": {
        "blocking": """
            a_conversation_from_its_beginning_to_its_end items_of_every_kind
            a_list_that_is_longer_than_a_page what_a_client_was_given_it_may_give_again
            an_item_is_deleted a_response_in_a_conversation_is_its_newest_item
        """,
        "async": "items_are_listed_later four_who_add_at_once",
        "wrong": "an_image_is_refused_by_its_place",
    },
    "any other": {
        "wrong": "a_route_that_is_not_there",
    },
}
MADE_BY = {  # files of `scripts/`: routes that have no own share the first
    "": ("calls", "cancelled_calls", "wrong_calls"),
    "responses": ("response_calls",),
    "responses over a websocket": ("socket_calls",),
    "conversations": ("conversation_calls",),
}


def listed(*routes: str) -> list[str]:
    """All of them, or those of some routes, in their order."""
    return [
        name
        for route in routes or LISTED
        for names in LISTED[route].values()
        for name in names.split()
    ]
