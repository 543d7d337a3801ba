"""Small random models, as files and as shapes only."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t
from safetensors import safe_open
from transformers.core_model_loading import revert_weight_conversion

Shapes = dict[str, tuple[int, ...]]


@pytest.fixture(scope="session")
def save() -> Any:
    """Returns the function that saves a random model and reads its configuration and shapes back from the files."""

    def save(cls: Any, config: Any, directory: Path) -> tuple[Any, Shapes]:
        t.logging.disable_progress_bar()
        torch.manual_seed(0)
        model = cls(config)
        with torch.no_grad():
            for parameter in model.parameters():  # norms are all alike at first
                parameter.add_(0.1 * torch.randn_like(parameter))
        model.save_pretrained(directory)
        with safe_open(directory / "model.safetensors", "pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no mapping
        return t.AutoConfig.from_pretrained(directory), shapes

    return save


@pytest.fixture(scope="session")
def described() -> Any:
    """Returns the function that gives a configuration and the shapes in a file of a class, made without weights."""

    def described(cls: Any, config: Any) -> tuple[Any, Shapes]:
        config.architectures = [cls.__name__]
        with torch.device("meta"):
            model = cls(config)
        state = revert_weight_conversion(model, model.state_dict())
        return config, {name: tuple(x.shape) for name, x in state.items() if name not in model.all_tied_weights_keys}

    return described
