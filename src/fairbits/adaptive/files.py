"""Overlays on disk: one safetensors file each beside a manifest, `overlays.json`, that says what they are for."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

import torch
from torch import Tensor

from fairbits.adaptive.activation_table import ActivationTable
from fairbits.adaptive.overlay import BASE, Form, Overlay, Patch
from fairbits.checks import one_of
from fairbits.errors import InputError
from fairbits.model.checkpoint import Checkpoint
from fairbits.model.json_files import read_object
from fairbits.model.packed import Stored, read_packed
from fairbits.model.safetensors_files import map_tensor
from fairbits.model.safetensors_header import read_header
from fairbits.model.safetensors_writing import in_memory, sha256_of, write_tensors, write_whole

MANIFEST = "overlays.json"
SCHEMA = "fairbits.overlays/1"
THRESHOLDS = "activations.safetensors"


@dataclass(frozen=True, eq=False)
class Overlays:
    """All overlays of a base.

    `base`         fingerprint of the base they were made for
    `languages`    which overlay serves a language that is served; BASE where none pays
    `record`       how they came about and what they do, for people and reports
    `activations`  thresholds of the inputs of linear maps under every overlay; None: inputs are not rounded
    """

    base: str
    overlays: tuple[Overlay, ...]
    languages: Mapping[str, str]
    record: Mapping[str, Any] = field(default_factory=dict)
    activations: ActivationTable | None = None

    @property
    def size_bytes(self) -> int:
        """What the tensors of all take; those of overlays with the same patches are stored once."""
        rows = {id(each.patches): each.size_bytes for each in self.overlays}
        return sum(rows.values()) + (self.activations.extra_bytes if self.activations else 0)

    def save(self, directory: str | Path) -> None:
        """Writes all files; the manifest, without which nothing is read, comes last."""
        place = Path(directory)
        try:
            place.mkdir(parents=True, exist_ok=True)
            (place / MANIFEST).unlink(missing_ok=True)
            files: dict[int, dict[str, Any]] = {}
            said = []
            for each in self.overlays:
                if id(each.patches) not in files:
                    files[id(each.patches)] = _written(place, each)
                said.append({"name": each.name, "languages": list(each.languages), **files[id(each.patches)]})
            manifest = {
                "schema": SCHEMA,
                "base": self.base,
                "languages": dict(self.languages),
                "overlays": said,
                "record": dict(self.record),
                "activations": None if self.activations is None else _thresholds(place, self.activations),
            }
            write_whole(place / MANIFEST, [json.dumps(manifest, indent=1, ensure_ascii=False).encode()])
        except OSError as error:
            raise InputError(
                f"{place} cannot be written ({error.strerror}); give another path, or make room there"
            ) from None

    @classmethod
    def load(cls, directory: str | Path, base: Checkpoint) -> "Overlays":
        """Returns the overlays in a directory, if they are whole and were made for this base."""
        place = Path(directory)
        manifest = place / MANIFEST
        if not manifest.is_file():
            raise InputError(f"{place} has no {MANIFEST}; give a directory that fairbits overlay has written")
        said = read_object(manifest)
        if said.get("schema") != SCHEMA:
            raise InputError(f"{manifest} has the schema {said.get('schema')!r:.60}; {SCHEMA} is read: make them again")
        try:
            if said["base"] != base.fingerprint:
                raise InputError(
                    f"{place} was made for another base than {base.target}; give the base of then, or make them again"
                )
            patches = {each["file"]: _read(place, each, base) for each in said["overlays"]}
            overlays = tuple(
                Overlay(str(each["name"]), tuple(map(str, each["languages"])), patches[each["file"]])
                for each in said["overlays"]
            )
            table = None
            if said["activations"] is not None:
                table = ActivationTable.of(_checked(place, said["activations"]), said["activations"])
            languages = {str(code): str(name) for code, name in said["languages"].items()}
            record = dict(said["record"])
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise InputError(f"{manifest} is damaged ({type(problem).__name__}: {problem}); make it again") from None
        lost = sorted(set(languages.values()) - {BASE, *(each.name for each in overlays)})
        if lost:
            raise InputError(f"{manifest} names the overlay {lost[0]!r}, which it does not have; make it again")
        return cls(str(said["base"]), overlays, languages, record, table)


def check_directory(directory: Path) -> Path:
    """Returns where overlays can be written: a directory that is not there yet, is empty, or holds older ones."""
    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory} is no directory; give one to write overlays to")
    held = sorted(each.name for each in directory.iterdir()) if directory.is_dir() else []
    if held and MANIFEST not in held:
        raise InputError(f"{directory} holds other files ({held[0]} …); give a directory of its own for overlays")
    return directory


def _written(place: Path, overlay: Overlay) -> dict[str, Any]:
    """Returns what the manifest says of the patches of an overlay, after writing them."""
    name = f"{overlay.name}.safetensors"
    digest = write_tensors(place / name, in_memory(overlay.tensors()))
    patches = [
        {
            "tensor": patch.tensor,
            "module": patch.module,
            "form": patch.form,
            "bits": patch.bits,
            "rows": patch.count,
            "transposed": patch.transposed,
        }
        for patch in overlay.patches
    ]
    return {"file": name, "sha256": digest, "size_bytes": overlay.size_bytes, "patches": patches}


def _thresholds(place: Path, table: ActivationTable) -> dict[str, Any]:
    return {
        "file": THRESHOLDS,
        "sha256": write_tensors(place / THRESHOLDS, in_memory(table.tensors())),
        **table.as_data(),
    }


def _checked(place: Path, said: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns the tensors of a file that the manifest names, if it is whole."""
    file = place / str(said["file"])
    if file.parent != place or not file.is_file():
        raise InputError(f"{place} lacks {said['file']!r:.80}; copy all files again, or make them again")
    if sha256_of(file) != said["sha256"]:
        raise InputError(f"{file} is damaged: its checksum is another one; copy it again, or make it again")
    return {info.name: map_tensor(info) for info in read_header(file).values()}


def _read(place: Path, said: Mapping[str, Any], base: Checkpoint) -> tuple[Patch, ...]:
    tensors = _checked(place, said)
    return tuple(_patch(tensors, each, base) for each in said["patches"])


def _patch(tensors: Mapping[str, Tensor], said: Mapping[str, Any], base: Checkpoint) -> Patch:
    name, bits, form = str(said["tensor"]), int(said["bits"]), cast(Form, one_of("form", said["form"], get_args(Form)))
    found = tensors.get(f"{name}_rows")
    rows = None if found is None else found.to(torch.int64)
    codes = base_steps = None
    if form == "steps":
        steps, whole = tensors[f"{name}_scale"].clone(), base.read(f"{name}_scale")
        base_steps = whole.clone() if rows is None else whole.index_select(0, rows)
    else:
        stored = {each: tensors[each] for each in (f"{name}_packed", f"{name}_scale")}
        own = read_packed({**stored, f"{name}_shape": base.read(f"{name}_shape")}, name, Stored(bits))
        codes, steps = own.codes, own.steps
    return Patch(form, name, str(said["module"]), bits, rows, steps, codes, base_steps, bool(said["transposed"]))
