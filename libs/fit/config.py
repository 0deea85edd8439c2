"""Facts from ``config.json`` and the safetensors index: what Transformers and vLLM read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from .facts import MAX_LAYERS, Experts, Facts, Layers, Unreadable, Weights
from .parameters import Counts, Latent, Shape, count
from .quantisation import FP8, INT4, MXFP4, NVFP4, SIXTEEN, SMALLER, Precision

Config = Mapping[str, Any]

_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "head_dim": 256,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "tie_word_embeddings": True,
    },
    "gemma2": {"head_dim": 256, "sliding_window": 4096, "sliding_window_pattern": 2, "tie_word_embeddings": True},
    "mistral": {"sliding_window": 4096},
    "cohere2": {"sliding_window_pattern": 4, "tie_word_embeddings": True},
    "gpt_oss": {"sliding_window_pattern": 2},
    "llama4_text": {"n_shared_experts": 1, "max_position_embeddings": 131072},
}
"""What Transformers' configuration classes fill in where a config.json is silent."""

_ALL_SLIDING = frozenset({"mistral", "mixtral", "phi3", "starcoder2"})
"""Families whose every layer slides when the config names a window."""

_SHARED = ("n_shared_experts", "num_shared_experts")

_ENCODERS = frozenset(
    {
        *("bert", "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "electra", "mpnet", "distilbert"),
        *("modernbert", "nomic_bert", "new", "deberta", "deberta-v2", "esm"),
    }
)
"""Families that read a text at once, in both directions."""

_ROTARY_ENCODERS = frozenset({"modernbert", "nomic_bert", "new"})
"""Encoders without a table of positions, with a gated feed-forward part."""

_OFFSET_POSITIONS = frozenset({"roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet"})
"""Families whose first two positions belong to no token."""

_FOUR_NORMS = frozenset({"gemma2", "gemma3_text"})


class TensorSum(msgspec.Struct, frozen=True, kw_only=True):
    """The headers of safetensors files, added up."""

    total_bytes: int
    by_dtype: dict[str, int] = {}


def sum_of(headers: Sequence[Mapping[str, Any]]) -> TensorSum:
    """Bytes of every tensor the files' headers name. Raises Unreadable."""
    by_dtype: Counter[str] = Counter()
    for header in headers:
        for name, tensor in header.items():
            if name == "__metadata__":
                continue
            try:
                begin, end = tensor["data_offsets"]
                by_dtype[str(tensor["dtype"])] += int(end) - int(begin)
            except (KeyError, TypeError, ValueError):
                raise Unreadable(f"the safetensors header's entry {name!r} has no data_offsets and dtype") from None
    return TensorSum(total_bytes=sum(by_dtype.values()), by_dtype=dict(by_dtype))


def facts_of(
    name: str, config: Config, *, index: Mapping[str, Any] | None = None, tensors: TensorSum | None = None
) -> Facts:
    """A model's facts.

    ``index`` is ``model.safetensors.index.json``, ``tensors`` what the files' own headers say; with neither the weights
    are computed from the config. Raises Unreadable.
    """
    reading = _Reading(config)
    counts = count(reading.shape, config)
    precision = reading.precision
    computed = _bytes(counts, precision)
    total = _published(index, tensors) or sum(computed.values())
    return _facts(name, reading, counts, precision, computed, total)


def in_precision(facts: Facts, config: Config, precision: str) -> Facts:
    """The same model as a repository in a smaller precision would hold it. Raises Unreadable for one not known."""
    known = SMALLER.get(precision)
    if known is None:
        raise Unreadable(f"{precision!r} is not a precision that can be planned: use {', '.join(SMALLER)}")
    reading = _Reading(config)
    counts = count(reading.shape, config)
    computed = _bytes(counts, known)
    made = _facts(facts.name, reading, counts, known, computed, sum(computed.values()))
    return msgspec.structs.replace(made, published=False)


def _published(index: Mapping[str, Any] | None, tensors: TensorSum | None) -> int | None:
    if tensors is not None:
        return tensors.total_bytes
    if index is None:
        return None
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, Mapping) else None
    if not isinstance(total, int | float) or total <= 0:
        raise Unreadable("model.safetensors.index.json has no metadata.total_size: the weights' size is not known")
    return int(total)


def _facts(
    name: str, reading: _Reading, counts: Counts, precision: Precision, computed: dict[str, float], total: int | float
) -> Facts:
    # The files say how much there is; which part of it is what only the config tells.
    scale = total / sum(computed.values())
    shape = reading.shape
    experts = reading.experts
    idle = computed["embedding"] if counts.head else 0.0
    return Facts(
        name=name,
        format="safetensors",
        architecture=reading.architecture,
        precision=precision.name,
        bits=precision.bits,
        layers=shape.layers,
        hidden=shape.hidden,
        feed_forward=reading.active_feed_forward,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        attention=reading.attention,
        latent=shape.latent is not None,
        experts=experts,
        vocabulary=shape.vocabulary,
        context=reading.context,
        parameters=counts.total,
        capability=precision.capability,
        encoder=reading.encoder,
        weights=Weights(
            total=round(total),
            experts=round(computed["experts"] * scale),
            unread=round((idle + computed["tower"] + computed["ahead"]) * scale),
        ),
        notes=reading.notes,
    )


def _bytes(counts: Counts, precision: Precision) -> dict[str, float]:
    """Bytes of each part."""
    linear = 2.0 if precision.experts_only else precision.bits / 8
    wide = precision.bits / 8 if precision.bits >= 16 else 2.0
    return {
        "embedding": counts.embedding * wide,
        "head": counts.head * wide,
        "linear": counts.linear * linear,
        "experts": counts.experts * precision.bits / 8,
        "other": counts.other * wide,
        "tower": counts.tower * wide,
        "ahead": counts.extra_embedding * wide,
    }


class _Reading:
    """A config.json, understood."""

    def __init__(self, config: Config) -> None:
        inner = config.get("text_config")
        text: dict[str, Any] = dict(inner) if isinstance(inner, Mapping) else dict(config)
        self.family = str(text.get("model_type") or config.get("model_type") or "")
        self.encoder = self.family in _ENCODERS and not text.get("is_decoder")
        architectures = config.get("architectures")
        named = isinstance(architectures, list) and bool(architectures)
        self.architecture = str(architectures[0]) if named and architectures else self.family or "unknown"
        self.config = config
        self.text = {
            **_DEFAULTS.get(self.family, {}),
            **{key: value for key, value in text.items() if value is not None},
        }
        # What a config says to be null is meant: a window of null is none.
        self.absent = {key for key, value in text.items() if value is None}
        self.layers = self._int("num_hidden_layers", "n_layer", "n_layers", "num_layers")
        if self.layers > MAX_LAYERS:
            raise Unreadable(f"config.json: {self.layers} layers are a mistake: at most {MAX_LAYERS} are expected")
        self.positions = self._int("max_position_embeddings", "n_positions", "seq_length", "max_seq_len")
        self.context = self.positions - (2 if self.family in _OFFSET_POSITIONS else 0)
        self.shape = self._shape()
        self.experts = self._experts()
        self.active_feed_forward = (
            self.shape.expert_feed_forward * self.experts.active + self.shape.shared_feed_forward
            if self.experts
            else self.shape.feed_forward
        )
        self.notes: tuple[str, ...] = ()
        self.attention = self._attention()
        self.precision = self._precision()

    def _find(self, *names: str) -> int | None:
        for name in names:
            value = self.text.get(name)
            if value is None or name in self.absent:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise Unreadable(f"config.json: {name} is {value!r}: a whole number is expected there")
            return value
        return None

    def _int(self, *names: str) -> int:
        value = self._find(*names)
        if not value:
            raise Unreadable(
                f"config.json has no {names[0]}: it is not the config of a text model, or of a kind that is not known"
            )
        return value

    def _shape(self) -> Shape:
        hidden = self._int("hidden_size", "n_embd", "d_model", "dim")
        heads = self._int("num_attention_heads", "n_head", "n_heads")
        experts = self._find("num_experts", "n_routed_experts", "num_local_experts") or 0
        feed_forward = self._find("intermediate_size", "n_inner", "ffn_dim", "hidden_dim") or 4 * hidden
        expert_width = self._find("moe_intermediate_size", "expert_intermediate_size") or feed_forward
        shared = self._find(*_SHARED) or 0
        latent = None
        if rank := self._find("kv_lora_rank"):
            latent = Latent(
                q_rank=self._find("q_lora_rank"),
                kv_rank=rank,
                rope=self._find("qk_rope_head_dim") or 0,
                nope=self._int("qk_nope_head_dim"),
                value=self._int("v_head_dim"),
            )
        return Shape(
            layers=self.layers,
            hidden=hidden,
            vocabulary=self._int("vocab_size"),
            heads=heads,
            kv_heads=self._find("num_key_value_heads", "num_kv_heads", "multi_query_group_num") or heads,
            head_dim=self._find("head_dim") or hidden // heads,
            feed_forward=feed_forward,
            tied=self.encoder
            or bool(self.config.get("tie_word_embeddings", self.text.get("tie_word_embeddings", False))),
            gated=not self.encoder or self.family in _ROTARY_ENCODERS,
            table_positions=self.positions if self.encoder and self.family not in _ROTARY_ENCODERS else 0,
            token_types=self._find("type_vocab_size") or 0 if self.encoder else 0,
            pooler=self.encoder and self.family not in _ROTARY_ENCODERS,
            experts=experts,
            expert_feed_forward=expert_width if experts else 0,
            shared_feed_forward=self._find("shared_expert_intermediate_size") or shared * expert_width,
            dense_layers=self._dense_layers() if experts else 0,
            dense_feed_forward=self._find("intermediate_size_mlp") or 0,
            expert_biases=self.family == "gpt_oss",
            latent=latent,
            ahead=self._find("num_nextn_predict_layers") or 0,
            norms=4 if self.family in _FOUR_NORMS else 2,
        )

    def _dense_layers(self) -> int:
        """Layers without experts: the first ones, those that are listed, or all but one in so many."""
        first = self._find("first_k_dense_replace") or 0
        listed = self.text.get("mlp_only_layers")
        listed = listed if isinstance(listed, list) else []
        step = self._find("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq") or 1
        return sum(i < first or i in listed or (i + 1) % step != 0 for i in range(self.layers))

    def _experts(self) -> Experts | None:
        if self.shape.experts < 2:
            return None
        active = self._find("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_topk")
        return Experts(
            total=self.shape.experts,
            active=active or 1,
            shared=self._find(*_SHARED) or 0,
        )

    def _attention(self) -> tuple[Layers, ...]:
        if self.encoder:
            return ()
        shape = self.shape
        windows = Counter(self._windows())
        idle = windows.pop(-1, 0)
        if idle:
            self.notes = (f"the state of {idle} layers with linear attention: it does not grow with the context",)
        if shape.latent is not None:
            kept = (1, shape.latent.kv_rank + shape.latent.rope, 0)
        else:
            kept = (shape.kv_heads, shape.head_dim, shape.head_dim)
        return tuple(
            Layers(count=number, kv_heads=kept[0], key_dim=kept[1], value_dim=kept[2], window=window or None)
            for window, number in sorted(windows.items())
        )

    def _windows(self) -> list[int]:
        """For every layer its window; 0: none, -1: it keeps nothing for a token."""
        window = self._find("sliding_window") or 0
        if self.text.get("use_sliding_window") is False:
            window = 0
        types = self.text.get("layer_types")
        if isinstance(types, list) and len(types) == self.layers:
            return [window if "sliding" in str(t) else -1 if "linear" in str(t) else 0 for t in types]
        if every := self._find("full_attention_interval"):
            return [0 if (i + 1) % every == 0 else -1 for i in range(self.layers)]
        if not window:
            return [0] * self.layers
        if every := self._find("sliding_window_pattern", "_sliding_window_pattern"):
            return [0 if (i + 1) % every == 0 else window for i in range(self.layers)]
        if self.family in _ALL_SLIDING:
            return [window] * self.layers
        return [0] * self.layers

    def _precision(self) -> Precision:
        quantised = self.config.get("quantization_config") or self.text.get("quantization_config")
        if not isinstance(quantised, Mapping):
            dtype = str(self.config.get("torch_dtype") or self.config.get("dtype") or self.text.get("torch_dtype")
                        or self.text.get("dtype") or "bfloat16")  # fmt: skip
            known = SIXTEEN.get(dtype.removeprefix("torch."))
            if known is None:
                raise Unreadable(f"config.json: the dtype {dtype!r} is not known: {', '.join(SIXTEEN)} are")
            return known
        method = str(quantised.get("quant_method", "")).lower()
        algorithm = str(quantised.get("quant_algo", "")).lower()
        if method in ("fp8", "fbgemm_fp8") or algorithm.startswith("fp8"):
            return FP8
        if method == "mxfp4":
            return MXFP4
        if algorithm.startswith("nvfp4"):
            return NVFP4
        bits = quantised.get("bits") or quantised.get("w_bit") or _compressed_bits(quantised)
        if bits is None and method == "bitsandbytes":
            bits = 4 if quantised.get("load_in_4bit") else 8
        if not isinstance(bits, int):
            raise Unreadable(
                f"config.json: the bits of its quantization_config (method {method or algorithm!r}) are not known"
            )
        if bits == 8:
            return msgspec.structs.replace(FP8, name=f"int8-{method}", capability=(7, 5))
        return Precision(f"int{bits}-{method}", bits + INT4.bits - 4, capability=INT4.capability)


def _compressed_bits(quantised: Mapping[str, Any]) -> int | None:
    groups = quantised.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        bits = weights.get("num_bits") if isinstance(weights, Mapping) else None
        if isinstance(bits, int):
            return bits
    return None
