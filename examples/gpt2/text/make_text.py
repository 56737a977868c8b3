"""Write the text that the example learns: days in a harbour town, made from a small grammar with a fixed seed.

``python examples/gpt2/text/make_text.py > examples/gpt2/text/harbour.txt`` made the file beside it.
"""

from __future__ import annotations

import random
import textwrap

PEOPLE = {
    "Mara": ("she", "her", "the baker"),
    "Old Tobin": ("he", "his", "the ferryman"),
    "Ines": ("she", "her", "the keeper of the light"),
    "Captain Bell": ("she", "her", "a trader from the south"),
    "Little Joss": ("he", "his", "the net mender's son"),
    "Doctor Ames": ("he", "his", "the only doctor on the coast"),
}
PLACES = ["the quay", "the bakery", "the lighthouse", "the market", "the long bridge", "the boat shed"]
WEATHER = [
    "The wind came from the north",
    "A thin fog lay over the water",
    "It had rained all night",
    "The sun stood low over the roofs",
    "The first frost was on the ropes",
    "A warm day began without a cloud",
]
TIMES = ["and the gulls were quiet", "and the tide was out", "and the lamps still burned", "and the bells rang six"]
THINGS = ["a basket of bread", "two coils of rope", "a letter with a red seal", "a lantern", "a crate of pears"]
CARRIED = ["brought", "carried", "sent", "took"]
NEWS = [
    "the ferry would be late",
    "a ship had passed the point",
    "the price of salt was up again",
    "the bridge would be closed until noon",
    "there would be music in the evening",
]
WISHES = ["good weather", "a quiet sea", "more time", "a new sail", "a cup of tea"]
MOODS = ["slowly", "in a hurry", "with a smile", "without a word", "whistling"]
SAYINGS = [
    "What the tide takes, the tide brings back",
    "A full net is no reason to sing before the harbour",
    "Never count the boats while it is dark",
    "Bread first, and then the news",
]


def opening(pick: random.Random) -> str:
    return f"{pick.choice(WEATHER)}, {pick.choice(TIMES)}."


def errand(pick: random.Random) -> str:
    name, other = pick.sample(list(PEOPLE), 2)
    they, their, trade = PEOPLE[name]
    return pick.choice(
        [
            f"{name}, {trade}, {pick.choice(CARRIED)} {pick.choice(THINGS)} to {pick.choice(PLACES)}.",
            f"{name} walked to {pick.choice(PLACES)} {pick.choice(MOODS)}, for {they} was to meet {other} there.",
            f"At {pick.choice(PLACES)} {name} lost {pick.choice(THINGS)}, and {other} found it.",
            f"{name} and {other} sat at {pick.choice(PLACES)} and talked about {pick.choice(WISHES)}.",
            f"{name} had left {their} coat at {pick.choice(PLACES)} and went back for it {pick.choice(MOODS)}.",
        ]
    )


def talk(pick: random.Random) -> str:
    name, other = pick.sample(list(PEOPLE), 2)
    they, _, _ = PEOPLE[other]
    return pick.choice(
        [
            f'"They say that {pick.choice(NEWS)}," said {name}. "Then I will wait," said {other}, and {they} waited.',
            f'"All I want is {pick.choice(WISHES)}," said {name} to {other}.',
            f'{name} asked {other} for {pick.choice(THINGS)}. "Ask me at {pick.choice(PLACES)}," {they} answered.',
            f'"{pick.choice(SAYINGS)}," said {name}, as people in the town do.',
        ]
    )


def closing(pick: random.Random) -> str:
    return pick.choice(
        [
            "In the evening the boats came home one by one, and the town counted them.",
            f"At night only {pick.choice(PLACES)} had a light.",
            f"Nobody knew yet that {pick.choice(NEWS)}.",
            "So the day ended, and the sea went on.",
        ]
    )


def day(pick: random.Random) -> str:
    sentences = [opening(pick)]
    for _ in range(pick.randint(3, 5)):
        sentences.append(pick.choice([errand, talk])(pick))
    return textwrap.fill(" ".join([*sentences, closing(pick)]), 80)


def main(days: int = 100, seed: int = 1893) -> None:
    pick = random.Random(seed)
    print("\n\n".join(day(pick) for _ in range(days)))


if __name__ == "__main__":
    main()
