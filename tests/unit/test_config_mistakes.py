"""Mistakes: each one line at its own place, all at once, none a traceback."""

from __future__ import annotations

import pytest

import guarded
from guarded.config import problems_of

TEXT = """\
version: 2
polices: {}
stores:
  shared: {ulr: redis://x}
  other: {url: rediss, timeout: 5x}
defaults: {retry: {base: "100"}, retires: {}}
templates:
  a: {extends: b}
  b: {extends: a}
  outbound: {circuit: {failure_rate: 50, min_cals: 20}}
policies:
  p1: {extends: outbuond}
  p2: {limit: {max_concurrent: "20"}}
  p3: {limit: {max_concurrent: 0}}
  p4: {retry: {retries: 2, on: [ConectionError, "nope:Error"]}}
  p5: {retry: {retries: 2, attempts: 3}}
  p6: {retry: {jitter: ful}}
  p7: {deadline: {seconds: 10, mode: thread, late: raise}}
  p8: {limit: dbb}
  p9: 5
  p10: {}
  p10: {retry: 1}
  p11: {retry: {retry_after: yes}}
  p12: {retry: !!python/object/apply:os.system [x]}
  p13: {retry: {base: "${NOT_THERE}"}}
  p14: {order: [retry], retry: 1, limit: 2}
  "p 15": {retry: 1}
  p16: {rate: {key: "{a}"}}
  p17: {deadline: {mode: cooperative}}
targets:
  "shop.pay.charge": p8
  "shop.pay:charge": p88
events: {level: LOUD}
"""

LINES = """\
1:10: version: must be 1, not 2
2:1: polices: there is no section 'polices' (did you mean 'policies'?)
4:3: stores.shared: url is missing
4:12: stores.shared.ulr: there is no option 'ulr' (did you mean 'url'?)
5:16: stores.other.url: is no address (for example redis://host:6379/0 or memory://)
5:33: stores.other.timeout: '5x': 'x' is no unit: use ns, us, ms, s, m, h, d or w
6:26: defaults.retry.base: '100': needs a unit: write '100s' for seconds or '100ms' for milliseconds
6:34: defaults.retires: there is no layer 'retires' (did you mean 'retry'?)
9:16: templates.b.extends: templates extend each other in a circle: a → b → a
10:38: templates.outbound.circuit.failure_rate: 50 is no ratio (ratios are 0..1, did you mean 0.5?)
10:42: templates.outbound.circuit.min_cals: there is no option 'min_cals' (did you mean 'min_calls'?)
12:17: policies.p1.extends: there is no template 'outbuond' (did you mean 'outbound'?)
13:32: policies.p2.limit.max_concurrent: must be a whole number, not '20' (write it without quotes)
14:32: policies.p3.limit.max_concurrent: 0: must be a whole number from 1 up
15:33: policies.p4.retry.on[0]: 'ConectionError' is no built-in exception (did you mean 'ConnectionError'?)
15:49: policies.p4.retry.on[1]: there is no module 'nope' (is it installed and on the path?)
16:25: policies.p5.retry.retries: retries=2, attempts=3: give one of them; attempts are retries + 1
17:24: policies.p6.retry.jitter: must be full or equal or decorrelated or none, not 'ful' (did you mean 'full'?)
18:52: policies.p7.deadline.late: late='raise' needs mode='cooperative'
19:15: policies.p8.limit: there is no policy 'dbb' (define it under policies, or give limit a mapping)
20:7: policies.p9: must be a mapping, not 5
21:3: policies.p10: has no layers
22:3: policies.p10: duplicate key, first used on line 21
23:30: policies.p11.retry.retry_after: must be true or false, not 'yes' (write true)
24:16: policies.p12.retry: tag !!python/object/apply:os.system is not allowed
25:24: policies.p13.retry.base: environment variable NOT_THERE is not set (give a default: ${NOT_THERE:-…})
26:16: policies.p14.order: does not say where limit stands (name every layer of the stack)
27:3: policies["p 15"]: is no name for a policy
28:9: policies.p16.rate: spec must be given
29:9: policies.p17.deadline: seconds must be given
31:3: targets["shop.pay.charge"]: is no pattern of a target
32:22: targets["shop.pay:charge"]: there is no policy 'p88' (did you mean 'p8'?)
33:17: events.level: must be TRACE or DEBUG or INFO or WARNING or ERROR or OFF, not 'LOUD'
"""


def test_every_mistake_of_a_file_is_one_line_at_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than 25 kinds in one file; line, column, path, message and the nearest right name."""
    monkeypatch.delenv("NOT_THERE", raising=False)
    found = [str(problem).removeprefix("<text>:") for problem in problems_of(TEXT)]
    for line, expected in zip(found, LINES.splitlines(), strict=False):
        assert line.startswith(expected)
    assert len(found) == len(LINES.splitlines()) >= 25


@pytest.mark.parametrize(
    "text",
    [
        "5\n",
        "- a\n- b\n",
        "policies: 5\n",
        "policies: [a]\n",
        "policies:\n",
        "policies: {p: [1]}\n",
        "policies: {p: {retry: [1]}}\n",
        "policies: {p: {retry: true}}\n",
        "policies: {p: {limit: {}}}\n",
        "policies: {p: {extends: 5}}\n",
        "policies: {p: {extends: [[a]]}}\n",
        "policies: {p: {order: 5, retry: 1}}\n",
        "policies: {p: {order: [[a]], retry: 1}}\n",
        "policies: {p: {order: [{a: 1}], retry: 1}}\n",
        "policies: {p: {enabled: 5, retry: 1}}\n",
        "templates: {t: 5}\npolicies: {p: {extends: t, retry: 1}}\n",
        "templates: 5\npolicies: {p: {extends: t, retry: 1}}\n",
        "defaults: [a]\npolicies: {p: {retry: 1}}\n",
        "defaults: {retry: 5}\npolicies: {p: {retry: 1}}\n",
        "targets: {a: 5}\n",
        "targets: [a]\n",
        "targets: {'a:b': {c: d}}\n",
        "stores: {a: 5}\npolicies: {p: {rate: {spec: 5/s, store: a}}}\n",
        "stores: [a]\n",
        "events: 5\n",
        "events: {level: [a]}\n",
        "version: [1]\n",
        "version: true\n",
        "policies: {p: {retry: {on: []}}}\n",
        "policies: {p: {retry: {on: {a: b}}}}\n",
        "policies: {p: {retry: {on: 'os:system.x'}}}\n",
        "policies: {p: {retry: {base: 1e999}}}\n",
        "policies: {p: {retry: {base: .nan}}}\n",
        "policies: {p: {limit: {max_concurrent: 0x}}}\n",
        "policies: {p: {limit: p}}\n",
        "policies: {p: {limit: q}, q: {retry: 1}}\n",
        "policies: {p: {limit: q}, q: {retry: 1, limit: 2}}\n",
    ],
)
def test_wrong_shapes_are_problems(text: str) -> None:
    """Whatever stands where a mapping, a list or a word should."""
    problems = problems_of(text)
    assert problems
    assert all(problem.line is not None for problem in problems)


@pytest.mark.parametrize("text", ["policies: {}\n", "version: 1\n", "defaults:\n", "events: {}\n"])
def test_empty_sections_are_fine(text: str) -> None:
    """Nothing is asked for, so nothing is wrong."""
    assert problems_of(text) == []


def test_nothing_is_registered_by_looking() -> None:
    """problems_of leaves the registry as it was."""
    assert problems_of("policies: {p: {retry: 1}, q: {limit: 0}}\n")
    assert list(guarded.registry) == []


def lines_of(text: str) -> list[str]:
    """The problems of a text, without its name."""
    return [str(problem).removeprefix("<text>:") for problem in problems_of(text)]


@pytest.mark.parametrize(
    ("layer", "wrong", "misspelled"),
    [
        ("limit: {max_concurent: 3, max_queue: -1}", "max_queue", "max_concurent"),
        ("deadline: {secnds: 3, late: raise}", "late", "secnds"),
        ("rate: {spce: 5/s, cost: 0}", "cost", "spce"),
        ("hedge: {aftr: 1s, max_hedges: 0}", "max_hedges", "aftr"),
        ("circuit: {failure: 3, half_open: 0}", "half_open", "failure"),
        ("retry: {retires: 3, factor: 0}", "factor", "retires"),
        ("idempotent: {kye: order_id, lease: 0}", "lease", "kye"),
    ],
)
def test_a_misspelled_option_hides_no_other_mistake(layer: str, wrong: str, misspelled: str) -> None:
    """Not even one that has to be there."""
    kind = layer.partition(":")[0]
    found = problems_of(f"policies: {{p: {{{layer}}}}}")
    assert {problem.path for problem in found} == {f"policies.p.{kind}.{option}" for option in (wrong, misspelled)}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "policies: {db: {limit: 3}, p: {limit: bd}}",
            "1:39: policies.p.limit: there is no policy 'bd' (did you mean 'db'?)",
        ),
        (
            "policies: {db: {limit: 3}, p: {retry: bd}}",
            "1:39: policies.p.retry: there is no policy 'bd' (define it under policies, or give retry a mapping)",
        ),
        (
            "policies: {p: {limit: {max_concurrent: 3, max_queue: -1}}}",
            "1:54: policies.p.limit.max_queue: -1: must be a whole number from 0 up, or null for any number",
        ),
        (
            "policies: {p: {rate: {spec: 5/s, cost: 0}}}",
            "1:40: policies.p.rate.cost: 0: must be a whole number from 1 up",
        ),
        ("policies: {p: {rate: 5/min/s}}", "1:22: policies.p.rate.spec: '5/min/s' has a wrong window"),
        (
            "policies: {p: {circuit: {window: 10}}}",
            "1:34: policies.p.circuit.window: 10: goes with failure_rate or slow_rate, not with 5 failures in a row",
        ),
        (
            "policies: {p: {timeout: 3}}",
            "1:16: policies.p.timeout: there is no layer 'timeout' (one of fallback, idempotent",
        ),
        ("db: {limit: 3}", "1:1: db: there is no section 'db' (one of version, stores, defaults, templates, policies"),
        (
            "policies: {p: {limit: {max_concurrent: 3, name: db}}}",
            "1:43: policies.p.limit.name: there is no option 'name' (the key of a policy is its name)",
        ),
        (
            "policies:\n  p:\n    limit:3",
            "3:5: policies.p: must be a mapping, not 'limit:3' (a colon needs a space after it)",
        ),
        (
            "policies:\n  p: {limit:3}",
            "2:7: policies.p[\"limit:3\"]: there is no layer 'limit:3' (a colon needs a space after",
        ),
        ("policies:\n  p:\n  limit: 3", "2:5: policies.p: must be a mapping, not null (indent what belongs to it)"),
        (
            "policies:\n  p: {limit: 3",
            "3:1: policies.p: not valid YAML: while parsing a flow mapping, did not find expected ',' or '}' "
            "(what it belongs to begins on line 2)",
        ),
        (
            "stores: {a: {url: 'mysql://h'}}",
            "1:19: stores.a.url: there is no store of the kind 'mysql' (one of memory, sqlite, redis",
        ),
        (
            "policies: {p: {retry: {budget: {ratio: 20, min: 1}}}}",
            "1:40: policies.p.retry.budget.ratio: 20 is no ratio (ratios are 0..1, did you mean 0.2?)",
        ),
        (
            "policies: {p: {limit: 1, retry: 1, order: [limit, rety]}}",
            "1:51: policies.p.order[1]: 'rety' is no layer (did you mean 'retry'?)",
        ),
    ],
)
def test_a_mistake_and_its_line(text: str, line: str) -> None:
    """What was given, the rule in the words of the file, and what to write instead; nothing twice."""
    assert lines_of(f"{text}\n")[0].startswith(line)


@pytest.mark.parametrize(
    "text",
    [
        "policies:\n  a: &a {limit: 3}\n  b: {<<: *a}",
        "policies: {p: {limit: 1, retry: 1, order: [limit, rety]}}",
        "policies: {p: {retry: {budget: {'${X}': 1}}}}",
    ],
)
def test_a_mistake_is_told_once(text: str) -> None:
    """What has been told at a place is not judged again."""
    assert len(lines_of(f"{text}\n")) == 1


def test_null_takes_an_option_away() -> None:
    """It is no value of a wrong kind: the option is as if not written, wherever that is allowed."""
    text = """
defaults: {limit: {max_queue: 5}}
stores: {s: {url: "memory://", timeout: null}}
policies:
  p: {limit: {max_concurrent: 3, max_queue: null, store: s}, order: null, enabled: null}
"""
    assert lines_of(text) == []
    assert lines_of(f"{text}  q: {{rate: {{spec: null}}}}\n") == ["6:7: policies.q.rate: spec must be given"]
    with guarded.load(text):
        assert guarded.registry["p"].options.max_queue is None


@pytest.mark.parametrize(
    "text",
    [
        "policies: {p: {limit: '${N}'}}",
        "policies: {p: {extends: '${N}'}}",
        "policies: {p: {limit: 3}}\ntargets: {'a:b': '${N}'}",
        "policies: {p: {limit: {max_concurrent: 3, store: '${N}'}}}",
        "policies: {p: {order: ['${N}'], limit: 3}}",
        "stores: {s: {url: '${N}://x'}}",
        "policies: {p: {retry: {on: '${N}'}}}",
        "policies: {p: {retry: {retries: 3, attempts: '${NUMBER}'}}}",
        "policies: {p: {rate: '5/${N}'}}",
        "policies: {p: {fallback: {function: '${N}:f'}}}",
        "policies: {p: {deadline: '${N}s'}}",
        "version: '${N}'",
        "policies: {p: '${N}'}",
        "events: {level: '${N}'}",
    ],
)
def test_what_comes_from_a_variable_is_never_shown(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither whole nor in part, nor as part of a rule about another option."""
    monkeypatch.setenv("N", "hunter2")
    monkeypatch.setenv("NUMBER", "7777")
    lines = lines_of(f"{text}\n")
    assert lines
    assert not [line for line in lines if "hunter" in line or "7777" in line]


def test_a_raw_text_is_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the default in it is the value; an empty variable is shown as what was written."""
    monkeypatch.setenv("EMPTY", "")
    assert lines_of("policies: {p: {limit: {max_concurrent: '${N:-abc}'}}}\n") == [
        "1:40: policies.p.limit.max_concurrent: must be a whole number, not ${N:-abc}"
    ]
    assert lines_of("policies: {p: {limit: {max_concurrent: '${EMPTY}'}}}\n") == [
        "1:40: policies.p.limit.max_concurrent: must be a whole number, not ${EMPTY}"
    ]


def test_circles_of_names() -> None:
    """Spelled out once."""
    lines = [str(problem) for problem in problems_of("policies: {a: {limit: b}, b: {limit: c}, c: {limit: a}}\n")]
    assert lines == ["<text>:1:23: policies.a.limit: policies name each other in a circle: a → b → c → a"]


def test_a_wrong_required_option_hides_no_other() -> None:
    """The other options are judged although the policy cannot be made."""
    limits = "limit: {max_concurrent: true, max_queue: -1, weight: 0}"
    text = f"policies: {{p: {{{limits}, deadline: {{seconds: x, late: raise}}}}}}\n"
    assert [problem.path.removeprefix("policies.p.") for problem in problems_of(text)] == [
        "limit.max_concurrent",
        "limit.max_queue",
        "limit.weight",
        "deadline.seconds",
        "deadline.late",
    ]
