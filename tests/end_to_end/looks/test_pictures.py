"""Two pictures differ when somebody would see it, and not by the edges of their letters."""

import io

from PIL import Image, ImageDraw, ImageFilter

from tests.end_to_end.looks.pictures import (
    MAX_DIFFERENT,
    compressed,
    difference,
    num_different,
    read,
)


def page(word: str = "Send", colour: str = "#0e626d", blur: float = 0, height: int = 120) -> bytes:
    """A button with a word on it."""
    image = Image.new("RGB", (200, height), "#fdfdfc")
    draw = ImageDraw.Draw(image)
    draw.rounded_rectangle((40, 30, 160, 80), 10, fill=colour)
    draw.text((75, 42), word, fill="white", font_size=20)
    written = io.BytesIO()
    image.filter(ImageFilter.GaussianBlur(blur)).save(written, "PNG")
    return written.getvalue()


def test_edges_that_are_a_little_softer_are_no_difference() -> None:
    assert num_different(read(page()), read(page(blur=0.4))) <= MAX_DIFFERENT


def test_the_fewer_colours_of_a_reference_are_no_difference() -> None:
    assert num_different(read(page()), read(compressed(page()))) == 0


def test_another_word_colour_or_size_is_a_difference() -> None:
    before = read(page())
    for other in (page("Stop"), page(colour="#a9321f"), page(height=121)):
        assert num_different(read(other), before) > MAX_DIFFERENT


def test_a_picture_of_the_difference_is_red_there() -> None:
    shown = read(difference(read(page("Stop")), read(page())))
    is_red = (shown[:, :, 0] > 200) & (shown[:, :, 1] == 0)
    assert is_red[42:66, 75:130].any() and not is_red[:30].any()
