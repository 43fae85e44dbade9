"""Messages as text, and as answered by a silo of a real kit; bytes of tensors."""

import json
import shutil
import tomllib
from functools import partial

import torch
from edits import JSON, Valid, damaged, inputs, messages
from hypothesis import strategies as st
from targets import TARGETS, Target, target

from pomona.core.errors import PomonaError
from pomona_federation.messages import message_bodies
from pomona_federation.messages.message_bodies import (
    Answer,
    Hello,
    HelloReply,
    MaskKey,
    Refusal,
    SumRequest,
    Task,
)
from pomona_federation.messages.study_bodies import SurveyAnswer
from pomona_federation.messages.tensor_bytes import Encoding, sha256
from pomona_federation.silo.client_app import ClientApp
from pomona_federation.silo.silo_in_study import Silo
from pomona_federation.study import parse_study

REFUSED = Valid(b'{"silo": "silo-1", "fault": "no"}', JSON)


def texts(world):
    """A valid body of each kind."""
    bodies = {
        Hello: world.exchanges["hello"].request, HelloReply: world.exchanges["hello"].answer, Task: world.exchanges["second"].request,
        Answer: world.exchanges["second"].answer,
    }  # fmt: skip
    task = message_bodies.read(Task, bodies[Task].body)
    key = MaskKey(key="ab" * 32, signature="cd" * 50)
    summed = SumRequest(task=task, keys=dict.fromkeys((0, 1, 4), key))
    return {record: Valid(message.body.encode(), JSON) for record, message in bodies.items()} | {
        Refusal: REFUSED,
        SumRequest: Valid(summed.model_dump_json().encode(), JSON),
    }


def as_text(record_type, world):
    def act(data):
        record = message_bodies.read(record_type, text(data))
        assert message_bodies.read(record_type, record.model_dump_json()) == record
        assert record.statement

    return messages(record_type, texts(world)[record_type]), act


TARGETS += [
    Target(f"{record.message_type}, as text", 50, partial(as_text, record))
    for record in (Hello, HelloReply, Task, Answer, Refusal, SumRequest)
]


def text(data):
    """A body as Flower delivers it: any characters, whatever the bytes."""
    return data.decode(errors="replace")


# A silo.


def silo(world, name, state):
    """A copy of silo-1's kit whose state is restored before each question."""
    anew = world.copy(world.kit, name)
    kit = anew()
    silo_ = Silo(kit)
    assert silo_.local

    def back():
        shutil.rmtree(kit / "state", ignore_errors=True)
        if state:
            shutil.copytree(state, kit / "state")
        return ClientApp(silo_)

    return back


@target("hello, answered by a silo", 5)
def hello(world):
    back = silo(world, "greeted", None)
    return messages(
        Hello, texts(world)[Hello]
    ), lambda data: back().greet(message_bodies.read(Hello, text(data))) and None


@target("task of a round, answered by a silo", 5)
def task(world):
    return answered(world, "second", "first")


@target("task of the closing visit, answered by a silo", 4)
def closing(world):
    return answered(world, "closing", "second")


def answered(world, subject, previous):
    request = world.exchanges[subject].request
    back = silo(world, f"asked-{subject}", world.exchanges[previous].state)

    def act(data):
        answer, uplink = back().answer(message_bodies.read(Task, text(data)), request.enclosed)
        assert message_bodies.read(Answer, answer.model_dump_json()) == answer
        assert not uplink or sha256(uplink) == answer.uplink
        return "asks for rows" if answer.missing else "taken"

    return messages(Task, Valid(request.body.encode(), JSON)), act


@target("row of a task under its old name or its own, taken by a silo", 4)
def row(world):
    request = world.exchanges["second"].request
    back = silo(world, "rowed", world.exchanges["first"].state)
    name, data = sorted(request.enclosed.items())[0]

    def act(data_):
        sealed, changed = data_[0] % 2, data_[1:]
        new = sha256(changed) if sealed else name
        rows = {n: d for n, d in request.enclosed.items() if n != name}
        back().answer(
            message_bodies.read(Task, request.body.replace(name, new)), {**rows, new: changed}
        )

    return st.builds(
        lambda sealed, row: bytes([sealed]) + row, st.integers(0, 1), damaged(Valid(data))
    ), act


# Surveys and studies.

FIGURES = {
    "rows": 30,
    "numbers": {"age": {"values": [31.5, 60], "counts": [14, 15], "rest": 1}},
    "names": {"site": {"names": ["A", "B"], "counts": [10, 20]}},
    "classes": {"names": ["0", "1"], "counts": [12, 18]},
    "words": {"up": 12},
    "withheld": {"name": "too many categories"},
}
SURVEYED = {
    "agreement": "ab" * 32, "run": "ef" * 32, "silo": "silo-1", "question": "cd" * 32,
    "columns": {
        "rows": 30, "kind": "table", "dtype": "float32", "targets": "classes",
        "columns": [{"name": "age", "kind": "number"}, {"name": "site", "kind": "category", "missing": ["?"]}],
    },
    "figures": FIGURES,
}  # fmt: skip


@target("survey-answer, as text", 50)
def surveyed(world):
    def act(data):
        record = message_bodies.read(SurveyAnswer, text(data))
        assert message_bodies.read(SurveyAnswer, record.model_dump_json()) == record

    valid = Valid(json.dumps(SURVEYED).encode(), JSON)
    act(valid.data)
    return messages(SurveyAnswer, valid), act


@target("study, as proposed to a silo", 20)
def proposed(world):
    federation = tomllib.loads((world.kit / "federation.toml").read_text())
    study = {
        "kind": "train",
        "name": "second",
        "run": federation["run"],
        "task": federation["task"],
    }

    def act(data):
        parsed = parse_study(data)
        assert parse_study(json.dumps(parsed.model_dump(mode="json"))) == parsed

    valid = Valid(json.dumps(study).encode(), JSON)
    act(valid.data)
    return inputs(valid), act


# Bytes of tensors.


@target("uplink, unsealed", 17)
def unseal(world):
    uplink, expects = (
        world.exchanges["second"].answer.enclosed["uplink"],
        world.visits[1][0].expects,
    )
    return inputs(
        Valid(uplink)
    ), lambda data: Encoding("fp32", 5).unpack_uplink(data, expects) and None


@target("row, unpacked", 17)
def unpack(world):
    entries = [
        message_bodies.EntryForm(many=False, dtype=d, width=3)
        for d in ("BOOL", "F32", "F64", "I64")
    ]

    def act(data):
        for entry in entries:
            try:
                assert torch.isfinite(Encoding("fp32", 5).unpack(data, entry)).all()
            except PomonaError as fault:
                refused = fault
        raise refused

    return st.binary(max_size=24), act
