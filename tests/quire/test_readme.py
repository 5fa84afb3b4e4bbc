"""README's table of APIs is what the server really announces."""

import re
from pathlib import Path

from broker.handlers.api_versions import entries
from wire.kafka.api_keys import ApiKey

ROOT = Path(__file__).parent.parent.parent


def test_the_api_table_is_true(monkeypatch):
    import quire.handlers

    class Anything:
        """Handlers keep their collaborators and ask nothing of them when they are made."""

        def __getattr__(self, name):
            return Anything()

        def __call__(self, *arguments, **keywords):
            return Anything()

        def __gt__(self, other):
            return True

    collaborators = (
        "env", "store", "registry", "catalog", "logs", "coordinator", "view", "timers", "bookies",
    )  # fmt: skip
    apis = quire.handlers.make_handlers(
        **{name: Anything() for name in collaborators}, data_directory="x"
    )
    served = {
        (
            entry.api_key,
            "".join(word.capitalize() for word in ApiKey(entry.api_key).name.split("_")),
            f"{entry.min_version}-{entry.max_version}",
        )
        for entry in entries(apis)
    }
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (\d+-\d+) \|$", text, re.M)
    assert {(int(key), name, versions) for key, name, versions in rows} == served
