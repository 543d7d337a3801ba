"""FairbitsConfig: `from_pretrained(…, quantization_config=FairbitsConfig(…))` loads a model and quantizes it.

Importing this module tells transformers about it.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from fairbits.api.make_plan import plan as make_plan
from fairbits.api.quantize import calibration_text, check_made_for, quantize_into
from fairbits.core.errors import InputError
from fairbits.core.progress import Progress
from fairbits.models.device import AUTO, resolve_device
from fairbits.models.loaded_checkpoint import LoadedCheckpoint, PackedOnSave
from fairbits.quantization import policies
from fairbits.quantization.plan import Plan
from fairbits.text.corpus import Corpus

METHOD = "fairbits"


@register_quantization_config(METHOD)
class FairbitsConfig(QuantizationConfigMixin):
    """How `from_pretrained` quantizes the model that it loads: the arguments of `fairbits.plan`, or a plan.

    The weights are those of `fairbits.quantize` with the same settings, and so is the form of the model: it generates,
    and its `save_pretrained` writes a packed checkpoint. `tokenizer` is that of the model; without it the tokenizer
    next to the model is loaded. The model must be in memory as a whole.
    """

    def __init__(
        self,
        bits: int | None = None,
        languages: Iterable[str] | None = None,
        *,
        policy: str = policies.DEFAULT,
        text: str | Path | Corpus | None = None,
        tokens: int | None = None,
        sequence: int = 512,
        seed: int = 0,
        plan: str | Path | Plan | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        device: str = AUTO,
        progress: Progress | None = None,
        quant_method: str = METHOD,
        **options: Any,
    ) -> None:
        chosen = {name: value for name, value in {"bits": bits, **options}.items() if value is not None}
        self.languages = None if languages is None else list(languages)
        if quant_method != METHOD:
            raise InputError(f"quant_method is {quant_method!r:.60}; that of a FairbitsConfig must be {METHOD!r}")
        if plan is not None and (chosen or self.languages or tokens):
            raise InputError("a plan was given and settings for another; give one of them")
        policies.check(policy, chosen)
        self.quant_method = quant_method  # type: ignore[assignment]
        self.policy, self.options, self.text, self.plan = policy, chosen, text, plan
        self.tokens, self.sequence, self.seed = tokens, sequence, seed
        self.tokenizer, self.device, self.progress = tokenizer, device, progress

    def __repr__(self) -> str:
        if self.plan is not None:
            return "FairbitsConfig(plan=…)"
        shown = {"policy": self.policy, **self.options, "languages": self.languages, "tokens": self.tokens}
        return f"FairbitsConfig({', '.join(f'{name}={value!r}' for name, value in shown.items() if value is not None)})"


@register_quantizer(METHOD)
class FairbitsQuantizer(PackedOnSave):
    """Quantizes a model as soon as its weights are loaded."""

    quantization_config: FairbitsConfig

    def _process_model_after_weight_loading(self, model: PreTrainedModel, **kwargs: Any) -> PreTrainedModel:  # noqa: ARG002
        self.remove_quantization_config(model)  # type: ignore[no-untyped-call]  # until it is quantized
        config = self.quantization_config
        device = resolve_device(config.device)
        checkpoint = LoadedCheckpoint(model, self._tokenizer(model))
        plan = self._plan(checkpoint, device)
        text = calibration_text(checkpoint, plan, config.text)
        return quantize_into(
            model, self, checkpoint, plan, text, in_place=True, device=device, progress=config.progress
        )

    def _plan(self, checkpoint: LoadedCheckpoint, device: str) -> Plan:
        config = self.quantization_config
        if config.plan is not None:
            plan = config.plan if isinstance(config.plan, Plan) else Plan.load(config.plan)
            check_made_for(plan, checkpoint)
            return plan
        return make_plan(
            checkpoint,
            policy=config.policy,
            languages=config.languages,
            text=config.text,
            tokens=config.tokens,
            sequence=config.sequence,
            seed=config.seed,
            device=device,
            progress=config.progress,
            **config.options,
        )

    def _tokenizer(self, model: PreTrainedModel) -> PreTrainedTokenizerBase | None:
        config = self.quantization_config
        reads = (
            config.plan is not None or config.languages or config.text or policies.find_policy(config.policy).reads_text
        )
        if config.tokenizer is not None or not reads:
            return config.tokenizer
        revision = getattr(model.config, "_commit_hash", None) or "main"
        try:
            return AutoTokenizer.from_pretrained(model.name_or_path, revision=revision)
        except (OSError, ValueError) as problem:
            raise InputError(
                f"there is no tokenizer next to {model.name_or_path} ({' '.join(str(problem).split()):.200}); pass it: "
                "FairbitsConfig(…, tokenizer=…)"
            ) from None
