"""The way of bags to a GPU, with a pretended one: what is begun when, and what waits for what."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from toy import toy_bags

from dasmil.train import transfer


class Stream:
    """Notes what it is asked to do."""

    def __init__(self, log):
        self.log, self.events = log, 0

    def record_event(self):
        self.events += 1
        return self.events

    def wait_event(self, event):
        self.log.append(f"wait {event}")


class OnDevice:
    """A tensor that is used on another stream than it was made on."""

    def __init__(self, value, log):
        self.value, self.log = value, log

    def record_stream(self, stream):
        self.log.append("keep")


def test_the_next_bag_is_copied_before_this_one_is_computed_on(monkeypatch):
    log, bags = [], toy_bags(3)
    computing = Stream(log)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(log))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: computing)

    def copied(bag, device):
        log.append(f"copy {bag.bag_id}")
        return OnDevice(bag.features, log), OnDevice(bag.coords, log), None

    monkeypatch.setattr(transfer, "_copied", copied)
    for number, (features, _, section) in enumerate(transfer.moved(iter(bags), torch.device("cuda", 0))):
        log.append(f"compute {number}")
        assert torch.equal(features.value, bags[number].features)
        assert section is None
    assert log == [
        "copy toy/0",
        *("copy toy/1", "wait 1", "keep", "keep", "compute 0"),
        *("copy toy/2", "wait 2", "keep", "keep", "compute 1"),
        *("wait 3", "keep", "keep", "compute 2"),
    ]


def test_bags_for_a_gpu_are_pinned_and_others_are_left_alone(monkeypatch):
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: (pinned.append(tensor.shape), tensor.clone())[1])
    bags = toy_bags(2)
    assert transfer.source(bags, torch.device("cpu")) is bags
    found = transfer.source(bags, torch.device("cuda", 0))
    assert len(found) == 2
    assert torch.equal(found[1].features, bags[1].features)
    assert found[1].bag_id == "toy/1"
    assert len(pinned) == 4  # features and coordinates, twice
    features, coords, section = next(transfer.moved(iter(bags), torch.device("cpu")))
    assert torch.equal(features, bags[0].features)
    assert torch.equal(coords, bags[0].coords)
    assert section is None
