"""What is said in the chats whose looks are checked: each kind of text that a page can get."""

TIDES = "Why are there two tides a day?"
SHORT_ANSWER = (
    "The Moon pulls the near side of the Earth more than its middle, and the far side less. Water "
    "rises on both, and the Earth turns below the two bulges."
)
GROWING = (
    "The Moon pulls the sea on the **near side** more than it pulls the Earth, and the Earth more "
    "than the sea on the far side.\n\n1. One bulge faces the Moon.\n2. The other"
)
MARKDOWN = """\
## Tides in short

The sea rises and falls **twice a day**, because the Earth turns below _two_ bulges. See the
[harbour's table](https://example.org/tides) or press `Ctrl+K`.

### What pulls

1. The Moon, most of all
   - near side: pulled more
   - far side: pulled less
2. The Sun, with 46 % of that

| Harbour | High water | Height | Range |
|---|---|--:|--:|
| Tidewick | 06:12 | 4.1 m | 3.2 m |
| Mussel Bay | 06:47 | 3.8 m | 2.9 m |
| Sandholm | 07:03 | 5.5 m | 4.4 m |

> Time and tide wait for nobody.

- [x] Look at the table
- [ ] Pull the boat up

---

Water is H<sub>2</sub>O, and <mark>this</mark> is marked.
"""
CODE = """\
This function tells the height of the water:

```python
from math import cos, pi


def height(hours: float, mean: float = 2.5, range_: float = 3.2) -> float:
    \"\"\"Metres of water, so many hours after high water.\"\"\"
    return mean + range_ / 2 * cos(2 * pi * hours / 12.42)  # a lunar day has two tides


print(f"{height(3.1):.2f} m")
```

And this one asks for it:

```bash
curl --silent "https://example.org/tides?harbour=tidewick&hours=3.1" | jq '.height'
```
"""
FORMULA = """\
The pull differs by \\(\\Delta a \\approx \\frac{2GMr}{d^3}\\) between the middle and either side. \
Summed over all constituents:

\\[ h(t) = h_0 + \\sum_{i=1}^{n} A_i \\cos\\!\\left( \\frac{2\\pi t}{T_i} + \\varphi_i \\right) \\]

with \\(T_1 = 12.42\\) hours for the Moon, and \\(T_2 = 12\\) for the Sun.
"""
ARABIC_QUESTION = "لماذا يحدث المد والجزر مرتين في اليوم؟"
ARABIC = """\
## المد والجزر

يجذب **القمر** الماء في الجانب القريب أكثر من الأرض، ويجذب الأرض أكثر من الماء في الجانب البعيد.

- مرتفع نحو القمر
- مرتفع في الجهة الأخرى

The English word is `tide`.

> الوقت لا ينتظر أحدا.
"""
LONG_WORD = "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft"
LONG_WORDS_QUESTION = f"What is {LONG_WORD * 2}, and where is https://example.org/{'a/' * 60}?"
LONG_WORDS = f"""\
It is a company: {LONG_WORD * 2}.

`{"x" * 120}`

| {LONG_WORD} | Short |
|---|---|
| {LONG_WORD} | 1 |

```text
{"0123456789" * 16}
```
"""
THOUGHT = """\
They ask about _tides_, of which there are **two** a day.

1. What pulls: the Moon, most of all.
2. Why two: the far side is pulled _less_.

```python
def pull(mass: float, distance: float) -> float:
    return mass / distance  # no number here: it would be the only thing of its colour
```

So I say it in two sentences, with `bulges` as the word.

"""
QUESTION_WITH_CODE = "What does this print?\n\n```python\nprint(sum(range(10)))\n```\n\nAnd why?"
DIAGRAM = """\
The water rises and falls twice a day:

```mermaid
flowchart LR
  low[Low water] --> rising[Flood] --> high[High water] --> falling[Ebb] --> low
```

That is all.
"""
