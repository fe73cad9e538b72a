"""The pydantic models of the file, and the JSON Schema made from them.

Bodies are partial here (a template need not be whole): required options and rules between options are judged when
the policies are built. Every error becomes a `Problem` at the line of the value, with the nearest right name.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model
from pydantic_core import PydanticCustomError

from guarded._core.nearest import choices
from guarded.config import fields
from guarded.config.document import Node, Path, Problem, brief, find, is_broken, plain, problem_at, shown
from guarded.config.fields import FieldType, Schema
from guarded.config.kinds import LAYERS, NAME, kind
from guarded.events.model import LEVELS

TARGET = r"^[A-Za-z_]\w*(\.[\w*]+)*:[A-Za-z_*][\w*]*(\.[\w*]+)*$"
_STORE = {"timeout": fields.DURATION, "lease": fields.DURATION, "probe": fields.DURATION, "prefix": fields.TEXT}
_STORE_HELP = {
    "timeout": "Longest time one step may take before the store counts as failed.",
    "lease": "Time a permit stays with a process that does not renew it.",
    "probe": "How often a failed store is tried.",
    "prefix": "What every key begins with.",
}
_NO_SPACE = "a colon needs a space after it"
_STRICT = ConfigDict(extra="forbid", strict=True)


def _model(name: str, definitions: Mapping[str, Any]) -> type[BaseModel]:
    # create_model is typed for literal field definitions only.
    make: Any = create_model
    made: type[BaseModel] = make(name, __config__=_STRICT, **definitions)
    return made


def _optional(types: Mapping[str, FieldType], help: Mapping[str, str]) -> dict[str, Any]:
    """Fields that may be left out or, to the same effect, be null."""
    return {
        name: (type_.annotation(nullable=True), Field(default=None, description=help.get(name)))
        for name, type_ in types.items()
    }


@functools.cache
def layer_model(word: str) -> type[BaseModel]:
    """The options of one kind of layer, all of them optional, with ``enabled``."""
    found = kind(word)
    options = {**found.options, "enabled": fields.BOOLEAN}
    help = {**found.help, "enabled": "Whether the layer takes part; true unless given."}
    return _model(word.title(), _optional(options, help))


@functools.cache
def document_model() -> type[BaseModel]:
    """The whole file."""
    layers = {key: (layer_model(word) | None, None) for key, word in LAYERS.items()}
    extends = fields.FieldType(_extends, ({"type": "string"}, {"type": "array", "items": {"type": "string"}}))
    order = fields.FieldType(_order, ({"type": "array", "items": {"enum": list(LAYERS)}, "uniqueItems": True},))
    own = _optional(
        {"extends": extends, "order": order, "enabled": fields.BOOLEAN},
        {
            "extends": "Template or templates below this body; later ones win.",
            "order": "Layers, outermost first, where the usual order is not wanted.",
            "enabled": "false takes the whole policy out.",
        },
    )
    body: Any = _model("Body", {**own, **layers})
    defaults: Any = _model("Defaults", layers)
    url = (fields.TEXT.annotation(), Field(description="memory://, sqlite:///file or redis://host:6379/0"))
    store: Any = _model("Store", {"url": url, **_optional(_STORE, _STORE_HELP)})
    events: Any = _model("Events", _optional({"level": fields.choice(*LEVELS.values(), "OFF")}, {}))
    text: Any = fields.TEXT.annotation()
    return _model(
        "Guarded",
        {
            "version": (
                Annotated[Literal[1], BeforeValidator(_no_bool)],
                Field(default=1, description="Version of this format."),
            ),
            "stores": (dict[str, store], {}),
            "defaults": (defaults | None, None),
            "templates": (dict[str, body], {}),
            "policies": (dict[str, body], {}),
            "targets": (dict[str, text], {}),
            "events": (events | None, None),
        },
    )


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):  # True equals 1
        raise PydanticCustomError("wrong", "{wrong}", {"wrong": f"must be 1, not {str(value).lower()}"})
    return value


def _extends(value: Any, allow: Sequence[str] | None) -> Any:
    names = value if isinstance(value, list) else [value]
    if not names or not all(isinstance(name, str) and name for name in names):
        raise fields.Wrong("must be the name of a template, or a list of names")
    return value


def _order(value: Any, allow: Sequence[str] | None) -> Any:
    if not isinstance(value, list):
        raise fields.Wrong("must be a list of layers, outermost first")
    wrong: dict[int | str, fields.Wrong] = {}
    for index, word in enumerate(value):
        if not isinstance(word, str) or word not in LAYERS:
            wrong[index] = fields.Wrong(f"{brief(word)} is no layer", choices(word, LAYERS))
        elif word in value[:index]:
            wrong[index] = fields.Wrong(f"{word!r} stands twice")
    if wrong:
        raise fields.Wrong("names what cannot be used", items=wrong)
    return value


def is_name(text: str) -> bool:
    """Whether a policy may be called so."""
    return re.fullmatch(NAME, text) is not None


def is_target(text: str) -> bool:
    """Whether a target may be written so."""
    return re.fullmatch(TARGET, text) is not None


def validate(root: Node, allow: Sequence[str] | None, problems: list[Problem]) -> set[Path]:
    """Check the document against the models; gives the paths at which problems were found."""
    found: set[Path] = set()
    try:
        document_model().model_validate(plain(root), context={"allow": allow})
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            path = tuple(detail["loc"])
            found.add(path)
            if not is_broken(root, path):
                problems.extend(_problems(root, path, detail))
    return found


def parse_layer(word: str, options: Mapping[str, Any], allow: Sequence[str] | None) -> dict[str, Any]:
    """The keyword arguments of a layer's factory; the options have been validated before."""
    model = layer_model(word).model_validate(dict(options), context={"allow": allow})
    return {name: getattr(model, name) for name in options if name != "enabled"}


def _problems(root: Node, path: Path, detail: Mapping[str, Any]) -> Iterator[Problem]:
    wrong = detail.get("ctx", {}).get("wrong")
    if not isinstance(wrong, fields.Wrong):
        yield _problem(root, path, detail)
        return
    wrongs: dict[Path, fields.Wrong] = {(*path, step): entry for step, entry in wrong.items.items()}
    for at, entry in (wrongs or {path: wrong}).items():
        if not is_broken(root, at):
            yield problem_at(find(root, at), at, str(entry), entry.hint)


def _problem(root: Node, path: Path, detail: Mapping[str, Any]) -> Problem:
    node = find(root, path)
    kind_of_error, context = detail["type"], detail.get("ctx", {})
    if kind_of_error == "extra_forbidden":
        word = str(path[-1])
        what, names = _right_names(path)
        return problem_at(node, path, f"there is no {what} {word!r}", _hint_for_name(word, names), at_key=True)
    if kind_of_error == "missing":
        return problem_at(node, path[:-1], f"{path[-1]} is missing", at_key=True)
    if kind_of_error in ("dict_type", "model_type", "model_attributes_type"):
        return problem_at(node, path, f"must be a mapping, not {shown(node)}", _hint_for_mapping(node))
    if kind_of_error == "literal_error":
        return problem_at(node, path, f"must be {context['expected']}, not {shown(node)}")
    return problem_at(node, path, str(detail["msg"]))


def _hint_for_name(word: str, names: Sequence[str]) -> str | None:
    if ":" in word:
        return _NO_SPACE
    return "the key of a policy is its name" if word == "name" else choices(word, names)


def _hint_for_mapping(node: Node) -> str | None:
    if node.value is None:
        return "indent what belongs to it"
    return _NO_SPACE if isinstance(node.value, str) and ":" in node.value else None


def _right_names(path: Path) -> tuple[str, list[str]]:
    """What stands at the last step of `path`, and how it could be called."""
    if len(path) == 1:
        return "section", list(document_model().model_fields)
    depth = {"policies": 2, "templates": 2, "defaults": 1}.get(str(path[0]))
    if depth is None:
        return "option", ["url", *_STORE] if path[0] == "stores" else ["level"]
    if len(path) == depth + 1:
        return "layer", [*LAYERS] if depth == 1 else [*LAYERS, "extends", "order", "enabled"]
    return "option", list(layer_model(LAYERS[str(path[depth])]).model_fields)


def json_schema() -> Schema:
    """The JSON Schema (draft 2020-12) of the file, for editors."""
    schema = document_model().model_json_schema()
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "guarded policies"}
    definitions = schema["$defs"]
    for name in ("Body", "Defaults"):
        for key, word in LAYERS.items():
            scalars = [] if name == "Defaults" else _bare(word)
            options = [{"$ref": f"#/$defs/{word.title()}"}, {"type": "null"}]
            definitions[name]["properties"][key] = {"anyOf": [*options, *scalars]}
    for section in ("policies", "templates", "stores"):
        schema["properties"][section]["propertyNames"] = {"pattern": NAME}
    schema["properties"]["targets"]["propertyNames"] = {"pattern": TARGET}
    _drop_null_defaults(schema)
    return schema


def _bare(word: str) -> list[Schema]:
    """What may stand in place of a layer's mapping: its first option, or the name of a shared policy."""
    found = kind(word)
    return [*found.options[found.first].schemas, {"type": "string", "pattern": NAME}, fields.VARIABLE]


def _drop_null_defaults(schema: Any) -> None:
    if isinstance(schema, dict):
        if schema.get("default", 0) is None:
            del schema["default"]
        for child in schema.values():
            _drop_null_defaults(child)
    elif isinstance(schema, list):
        for child in schema:
            _drop_null_defaults(child)
