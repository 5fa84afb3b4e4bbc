"""JAAS login files, as Java's javax.security.auth.login.Configuration reads them: who may log in.

    Bookie {
        org.apache.zookeeper.server.auth.DigestLoginModule required
            user_writer="secret" user_other="more";
    };

Sections by name, each with login modules, each with options. Comments are `//` and `/* */`; a value
may be quoted, with backslash escapes. `${...}`, which Java replaces by system properties, is
refused: there are none here. Flags (required, ...) are checked and mean nothing further.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from runtime.config import ConfigError
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Java's system property, taken as a setting's name.
JAAS_PATH_SETTING = "java.security.auth.login.config"
DIGEST_MODULE = "DigestLoginModule"
_FLAGS = frozenset({"required", "requisite", "sufficient", "optional"})
_SIZE_MAX_BYTES = 1 << 20
_TOKEN = re.compile(
    r'(?P<skip>\s+|//[^\n]*|/\*.*?\*/)|(?P<mark>[{};=])|"(?P<quoted>(?:[^"\\\n]|\\.)*)"'
    r'|(?P<word>[^\s{};="]+)',
    re.DOTALL,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


@dataclass(slots=True, frozen=True)
class LoginModule:
    """`name`: the class, with its package. `options` are in the order of the file."""

    name: str
    options: dict[str, str]

    def __repr__(self) -> str:
        # Options have passwords.
        return f"LoginModule({self.name!r}, {sorted(self.options)})"


class _Reader:
    def __init__(self, text: str, where: str, setting: str = JAAS_PATH_SETTING) -> None:
        self._where = where
        self._setting = setting
        self._tokens = list(self._cut(text))
        self._position = 0

    def _cut(self, text: str) -> Iterator[tuple[str, str, int]]:
        """(kind, text, line)"""
        position = 0
        while position < len(text):
            line = text.count("\n", 0, position) + 1
            match = _TOKEN.match(text, position)
            if match is None:
                raise self.error(line, "a quote that does not end")
            position = match.end()
            kind = match.lastgroup or ""
            value = match[kind]
            if kind == "quoted":
                value = _ESCAPED.sub(lambda found: _ESCAPES.get(found[1], found[1]), value)
            if kind != "skip":
                yield kind, value, line

    def error(self, line: int, words: str) -> ConfigError:
        return ConfigError(self._setting, f"{self._where}: line {line}: {words}")

    @property
    def line(self) -> int:
        if not self._tokens:
            return 1
        return self._tokens[min(self._position, len(self._tokens) - 1)][2]

    @property
    def is_at_end(self) -> bool:
        return self._position >= len(self._tokens)

    def is_next(self, mark: str) -> bool:
        return not self.is_at_end and self._tokens[self._position][:2] == ("mark", mark)

    def text(self, what: str) -> str:
        if self.is_at_end or self._tokens[self._position][0] == "mark":
            raise self.error(self.line, f"expected {what}")
        self._position += 1
        return self._tokens[self._position - 1][1]

    def mark(self, mark: str) -> None:
        if not self.is_next(mark):
            raise self.error(self.line, f"expected {mark!r}")
        self._position += 1


def parse_jaas(text: str, where: str = "JAAS") -> dict[str, list[LoginModule]]:
    """Modules of each section. ConfigError says at which line of `where` it is wrong."""
    reader = _Reader(text, where)
    sections: dict[str, list[LoginModule]] = {}
    while not reader.is_at_end:
        line, name = reader.line, reader.text("a section's name")
        if name in sections:
            raise reader.error(line, f"section {name} comes twice")
        reader.mark("{")
        modules = []
        while not reader.is_next("}"):
            modules.append(_module(reader))
        reader.mark("}")
        reader.mark(";")
        sections[name] = modules
    return sections


def _module(reader: _Reader) -> LoginModule:
    name = reader.text("a login module's class or '}'")
    line, flag = reader.line, reader.text("required, requisite, sufficient or optional")
    if flag.lower() not in _FLAGS:
        # Not repeated: where something is missing, it may be a password.
        raise reader.error(line, "expected required, requisite, sufficient or optional")
    options: dict[str, str] = {}
    while not reader.is_next(";"):
        line, key = reader.line, reader.text("an option or ';'")
        reader.mark("=")
        value = reader.text(f"a value of {key}")
        if "${" in value:
            raise reader.error(line, f"{key}: ${{...}} is not replaced here; write the value")
        options[key] = value
    reader.mark(";")
    return LoginModule(name, options)


def parse_jaas_entry(text: str, setting: str) -> LoginModule:
    """The one login module of a setting's value, as Kafka's sasl.jaas.config has it: `Module
    required option="value";`. ConfigError, which does not repeat the text: it has passwords."""
    reader = _Reader(text, setting, setting)
    module = _module(reader)
    if not reader.is_at_end:
        raise reader.error(reader.line, "more than one login module")
    return module


def digest_options(path: str | None, section: str) -> dict[str, str]:
    """The options of a section's DigestLoginModules, of the file that JAAS_PATH_SETTING names.
    ConfigError if there is no such file, section or module: also for Kerberos, which is not served.
    """
    if not path:
        raise ConfigError(
            JAAS_PATH_SETTING, f"{JAAS_PATH_SETTING}: must name the JAAS file for SASL"
        )
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_SIZE_MAX_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(JAAS_PATH_SETTING, f"{JAAS_PATH_SETTING}: {error}") from error
    if len(text) > _SIZE_MAX_BYTES:
        raise ConfigError(JAAS_PATH_SETTING, f"{path}: larger than {_SIZE_MAX_BYTES} bytes")
    sections = parse_jaas(text, path)
    if section not in sections:
        names = ", ".join(sections) or "none"
        raise ConfigError(JAAS_PATH_SETTING, f"{path}: no section {section}; there are: {names}")
    options: dict[str, str] = {}
    for module in sections[section]:
        kind = module.name.rpartition(".")[2]
        if kind != DIGEST_MODULE:
            raise ConfigError(
                JAAS_PATH_SETTING,
                f"{path}: section {section}: {module.name} is not served, only DIGEST-MD5 by "
                f"{DIGEST_MODULE} is"
                + (" (no Kerberos, GSSAPI)" if kind.startswith("Krb5") else ""),
            )
        options |= module.options
    return options
