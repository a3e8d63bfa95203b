"""What keeps other people's clients from asking anybody but the server that they are given."""

OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # prices that it has brought along
    # of Open WebUI
    "OFFLINE_MODE": "True",
    "ENABLE_VERSION_UPDATE_CHECK": "False",
    "ANONYMIZED_TELEMETRY": "False",
    "SCARF_NO_ANALYTICS": "True",
    "RAG_EMBEDDING_ENGINE": "openai",  # else it fetches a model for that
}
