"""Size rules of ops that no sample of torch runs, against torch: in-place forms, copies of views, ops of a GPU.

Those of a GPU are asked on the meta device, for which torch has shape functions of its own.
"""

import contextlib

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from preheat.bridge.composed import below_autograd
from preheat.bridge.ops import overload
from preheat.capture.size_rules import RULES
from tests.sizes.test_rules_of_samples import Checked, run

A = torch.ops.aten
X = torch.arange(24.0).reshape(4, 6)
I = torch.tensor([0, 2, 1])  # noqa: E741
Q = torch.randn(2, 4, 8, 16)
WINDOWS = (2, 1, 3)


def meta(*sizes, dtype=torch.float32):
    return torch.empty(*sizes, dtype=dtype, device="meta")


def attention(*sizes):
    """Query, key and value of a GPU's attention, laid out as heads of rows."""
    batch, heads, length, size = sizes
    return [meta(batch, length, heads, size, dtype=torch.float16).transpose(1, 2) for _ in range(3)]


def half(length=8):
    return attention(2, 4, length, 16)


def flash():
    q, k, v = half()
    out, logsumexp, cq, ck, mq, mk, seed, offset, _ = A._scaled_dot_product_flash_attention(q, k, v)
    return A._scaled_dot_product_flash_attention_backward(
        out, q, k, v, out, logsumexp, cq, ck, mq, mk, 0.0, False, seed, offset)


def efficient():
    q, k, v = half()
    out, logsumexp, seed, offset = A._scaled_dot_product_efficient_attention(q, k, v, None, True)
    return A._scaled_dot_product_efficient_attention_backward(
        out, q, k, v, None, out, logsumexp, seed, offset, 0.0, [True, True, True, False])


def cudnn():
    q, k, v = half()
    out, logsumexp, cq, ck, mq, mk, seed, offset, _ = A._scaled_dot_product_cudnn_attention(q, k, v, None, True)
    return A._scaled_dot_product_cudnn_attention_backward(
        out, q, k, v, out, logsumexp, seed, offset, None, cq, ck, mq, mk, 0.0, False)


def normed():
    x, w = meta(2, 3, 4, 5).to(memory_format=torch.channels_last), meta(3)
    made, mean, deviation, reserved = A.cudnn_batch_norm(x, w, w, w, w, True, 0.1, 1e-5)
    return A.cudnn_batch_norm_backward(x, made, w, w, w, mean, deviation, 1e-5, reserved)


def factories():
    made, types = overload("preheat.made.default"), {"dtype": None, "device": None}
    return (made("fft.rfftfreq", [7], [0.5], **types), made("hann_window", [5], [True], **types),
            made("tril_indices", [4, 6, 1], [], **types), made("triu_indices", [4, 6, -2], [], **types),
            made("linspace", [5], [0, 1.5], **types))


def layer(x):
    width = x.shape[-1]
    w = torch.randn
    return A._transformer_encoder_layer_fwd(
        x, width, 2, w(3 * width, width), w(3 * width), w(width, width), w(width), False, False, 1e-5, w(width), w(width),
        w(width), w(width), w(8, width), w(8), w(width, 8), w(width))


def heads(x):
    width = x.shape[-1]
    w = torch.randn
    return A._native_multi_head_attention(
        x, x, x, width, 2, w(3 * width, width), w(3 * width), w(width, width), w(width))


def image():
    return torch.randn(2, 3, 4, 5)


CALLS = {
    "_addmm_activation": lambda: A._addmm_activation(torch.randn(5), X, torch.randn(6, 5)),
    "_embedding_bag_forward_only": lambda: A._embedding_bag_forward_only(X, I, torch.tensor([0, 2])),
    "_embedding_bag_dense_backward": lambda: A._embedding_bag_dense_backward(
        torch.ones(2, 6), I, torch.tensor([0, 0, 1]), torch.tensor([2, 1]), torch.tensor([1, 0]), 4, False, 0, None),
    "_euclidean_dist": lambda: A._euclidean_dist(X, X[:3]), "_is_all_true": lambda: A._is_all_true(X > 0),
    "_is_any_true": lambda: A._is_any_true(X > 0),
    "_linalg_eigvals": lambda: A._linalg_eigvals(X[:, :4]),
    "_native_batch_norm_legit_no_training": lambda: A._native_batch_norm_legit_no_training(
        image(), torch.ones(3), torch.ones(3), torch.ones(3), torch.ones(3), 0.1, 1e-5),
    "_native_multi_head_attention": lambda: heads(torch.randn(2, 5, 8)),
    "_transformer_encoder_layer_fwd": lambda: layer(torch.randn(2, 5, 8)),
    "_scaled_dot_product_flash_attention": flash, "_scaled_dot_product_efficient_attention": efficient,
    "_scaled_dot_product_cudnn_attention": cudnn,
    "_fused_rms_norm": lambda: A._fused_rms_norm(meta(4, 6), [6], meta(6), 1e-5),
    "_fused_rms_norm_backward": lambda: A._fused_rms_norm_backward(
        meta(4, 6), meta(4, 6), [6], meta(4, 1), meta(6), [True, True]),
    "_unsafe_index_put": lambda: A._unsafe_index_put(X, [I], torch.ones(3, 6)),
    "_upsample_bicubic2d_aa": lambda: torch.nn.functional.interpolate(
        image().requires_grad_(), size=(3, 7), mode="bicubic", antialias=True).sum().backward(),
    "affine_grid_generator": lambda: A.affine_grid_generator(torch.randn(2, 2, 3), [2, 3, 4, 5], False),
    "aten.max.other": lambda: A.max.other(X, X[:1]), "aten.min.other": lambda: A.min.other(X, X[:1]),
    "avg_pool1d": lambda: A.avg_pool1d(X, WINDOWS[:1], [2]), "copy": lambda: A.copy(X, X[:1]),
    "cudnn_batch_norm": normed, "cudnn_batch_norm_backward": normed, "made": factories,
    "cumsum_": lambda: X.clone().cumsum_(1), "index_copy_": lambda: X.clone().index_copy_(0, I, X[:3]),
    "index_fill_": lambda: X.clone().index_fill_(0, I, 2.0), "index_put_": lambda: X.clone().index_put_((I,), X[:3]),
    "lift": lambda: A.lift(X), "masked_scatter_": lambda: X.clone().masked_scatter_(X > 3, X),
    "native_dropout": lambda: A.native_dropout(X, 0.5, True), "rand_like": lambda: torch.rand_like(X.t()),
    "random_": lambda: X.clone().random_(5), "randperm": lambda: torch.randperm(7),
    "scatter_add_": lambda: X.clone().scatter_add_(0, I[None], X), "zero": lambda: A.zero(X.t()),
    "scatter_reduce_": lambda: X.clone().scatter_reduce_(0, I[None], X, "amax"),
    "select_copy": lambda: torch.select_copy(X, 1, 2), "slice_copy": lambda: torch.slice_copy(X, 1, 1, 5, 2),
    "split_copy": lambda: torch.split_copy(X, 2), "triu_": lambda: X.clone().triu_(1),
    "unsafe_split_with_sizes": lambda: torch.unsafe_split_with_sizes(X, [1, 3]),
}
COMPOSED = frozenset(("_fused_rms_norm", "aten.max.other", "aten.min.other", "avg_pool1d"))  # come whole below autograd
# Rules of marks, of which types say nothing, of what gives nothing or is no op of its own, and those that other tests have: of recurrent layers
# (`tests/sizes/operators.py`, `test_recurrent.py`) and of generated random numbers (`tests/training/test_generated.py`).
ELSEWHERE = frozenset((
    "_conj", "conj", "_linalg_check_errors", "_unsafe_index_put_", "mkldnn_rnn_layer", "steps", "steps_backward", "preheat.uniform.default"))


def checked(names):
    mode = Checked()
    for name in names:
        with below_autograd() if name in COMPOSED else contextlib.nullcontext(), mode:
            CALLS[name]()
    return mode


@pytest.mark.parametrize("name", CALLS)
def test_the_rule_says_what_torch_gives(name):
    mode = checked([name])
    assert not mode.wrong, "\n".join(mode.wrong)
    assert name in mode.met


@pytest.mark.slow
def test_no_rule_is_without_a_test():
    met = run(op_db).met | checked(CALLS).met
    assert set(RULES) - met - ELSEWHERE == set()
