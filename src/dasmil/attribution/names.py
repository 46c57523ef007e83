"""Instances by the names that people know: their own ids, the kind of a cell, the slide of a section."""

from __future__ import annotations

from dasmil.types import Bag


class InstanceNames:
    """What the instances of one bag are called; numbers where the bag has no names."""

    def __init__(self, bag: Bag) -> None:
        self._ids = bag.instance_ids
        self._kinds = bag.instance_labels
        self._sections = bag.section
        self.kind_names = tuple(map(str, bag.metadata.get("instance_label_names", ())))
        self.section_names = tuple(map(str, bag.metadata.get("section_names", ())))

    @property
    def has_ids(self) -> bool:
        return self._ids is not None

    def own(self, k: int) -> str:
        """The instance's own id, or its number after a hash."""
        return f"#{k}" if self._ids is None else self._ids[k]

    def kind(self, number: int) -> str:
        """The name of a kind of instances (a cell type, a digit)."""
        return self.kind_names[number] if 0 <= number < len(self.kind_names) else str(number)

    def section(self, number: int) -> str:
        """The name of a section: its slide, where several were joined."""
        return self.section_names[number] if 0 <= number < len(self.section_names) else f"section {number}"

    def kind_of(self, k: int) -> str | None:
        return None if self._kinds is None else self.kind(int(self._kinds[k]))

    def section_of(self, k: int) -> str | None:
        return None if self._sections is None else self.section(int(self._sections[k]))

    def label(self, k: int) -> str:
        """The id, with the kind in brackets where it is known: "#12 [tumour]"."""
        kind = self.kind_of(k)
        return self.own(k) + ("" if kind is None else f" [{kind}]")
