"""What has passed is known by the code: tests and product code change it, pages do not."""

import subprocess
import sys
from pathlib import Path

import pytest

from compat_tests.long import __main__ as command
from compat_tests.long.parts import Part
from compat_tests.long.runner import code_of, commit_of

ROOT = Path(__file__).parents[3]
FILES = {
    "wire/buffers.py": "a = 1\n",
    "wire/records/_walk.c": "int a;\n",
    "tests/wire/test_buffers.py": "assert True\n",
    "compat_tests/librdkafka_tests.txt": "0001_multiobj\n",
    "requirements/run.txt": "trio\n",
    ".gitignore": "/build/\n",
    "README.md": "words\n",
    "compat_tests/README.md": "words\n",
    "docs/testing.md": "words\n",
    "docs/grafana/quire.json": "{}\n",
}
CODE = [name for name in FILES if not name.endswith(".md") and not name.startswith("docs/")]
PAGES = [name for name in FILES if name not in CODE]


def git(tree, *words):
    identity = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
    subprocess.run(["git", *identity, *words], cwd=tree, check=True, capture_output=True)


def write(tree, name, text):
    path = tree / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def commit(tree):
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--allow-empty", "--message", "Words")


@pytest.fixture
def tree(tmp_path):
    """A work tree with all of it committed."""
    tree = tmp_path / "tree"
    for name, text in FILES.items():
        write(tree, name, text)
    git(tree, "init", "--quiet")
    commit(tree)
    return tree


def test_outside_of_a_work_tree(tmp_path):
    assert code_of(tmp_path) == commit_of(tmp_path) == "no-commit"
    assert code_of(ROOT) != "no-commit"


@pytest.mark.parametrize("name", CODE)
def test_code_is_another(tree, name):
    before, known = code_of(tree), commit_of(tree)
    write(tree, name, FILES[name] + "\n")
    changed = code_of(tree)
    assert changed != before
    assert commit_of(tree) == f"{known} with changes"
    commit(tree)
    assert code_of(tree) == changed, "to commit it changes nothing"
    assert "with changes" not in commit_of(tree)
    write(tree, name, FILES[name])
    assert code_of(tree) == before
    (tree / name).unlink()
    assert code_of(tree) not in (before, changed)


@pytest.mark.parametrize("name", [*PAGES, "docs/long-tests.md", "docs/new/words.txt", "build/x.py"])
def test_pages_and_what_is_ignored_are_not(tree, name):
    before, known = code_of(tree), commit_of(tree)
    write(tree, name, "other words\n")
    assert code_of(tree) == before
    assert commit_of(tree) == known
    commit(tree)
    assert code_of(tree) == before


def test_a_new_file_is_another_code_and_so_is_its_content(tree):
    codes = [code_of(tree)]
    for text in ("a\n", "b\n"):
        write(tree, "tests/test_new.py", text)
        codes.append(code_of(tree))
    git(tree, "mv", "wire/buffers.py", "wire/views.py")
    codes.append(code_of(tree))
    assert len(set(codes)) == 4


def test_the_table_itself_leaves_what_has_passed(tree, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path / "cache"))
    part = Part("first", (sys.executable, "-c", ""), 60, {}, tmp_path)
    page = tree / "docs" / "long-tests.md"
    known = commit_of(tree)
    assert command.main(["--write", str(page)], [part], tree) == 0
    assert f"| {known} |" in page.read_text(encoding="utf-8")
    commit(tree)
    capsys.readouterr()
    assert command.main(["--write", str(page)], [part], tree) == 0
    assert "first: passed before" in capsys.readouterr().out
    assert f"| {known} |" in page.read_text(encoding="utf-8"), "it ran on that one"
    write(tree, "tests/wire/test_buffers.py", "assert 1\n")
    command.main(["--write", str(page)], [part], tree)
    assert "passed before" not in capsys.readouterr().out
