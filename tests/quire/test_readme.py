"""README's table of APIs is what the server really announces."""

import re
from pathlib import Path

from broker.handlers.api_versions import entries
from broker.handlers.leaders import LeadersHandler
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
    assert rows("") == served(apis)
    of_brokers = LeadersHandler(Anything(), Anything(), Anything(), Anything()).apis()
    assert rows(r" \(`quire broker`\)") == served(of_brokers)


def served(apis):
    return {
        (
            entry.api_key,
            "".join(word.capitalize() for word in ApiKey(entry.api_key).name.split("_")),
            f"{entry.min_version}-{entry.max_version}",
        )
        for entry in entries(apis)
    }


def rows(where):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.findall(rf"^\| (\d+) \| (\w+){where} \| (\d+-\d+) \|$", text, re.M)
    return {(int(key), name, versions) for key, name, versions in found}
