"""Random programs whose sizes change: rows of templates over tensors by rank, built while they run.

    write(random.Random(7))  ->  "def program(x, y, m, ids):\\n    a = x.transpose(0, 1)\\n ..."

x: [B, T], y: [B, T, 8], m: [B, 1, T] bools, ids: [B, T] integers below 8. A row that raises at the
sizes of the first call is thrown away, so most programs run; at other sizes they may raise, and then
the compiled program has to raise the same.
"""

import linecache
import math
import random
import re

import torch
import torch.nn.functional as F

# {1}..{4}: a tensor of floats of that rank; {f}: of any rank; {n}: an int made of sizes; {k}: a small
# number; {i}: a tensor of small integers. The rank of what a row gives is found by running it.
ROWS = """
    {f} + {f}
    {f} * {k}.5 - {f}
    {f}.relu()
    torch.maximum({f}, {f})
    torch.where({f} > 0, {f}, {k}.0)
    {f}.masked_fill({f} > 0.5, -1.0)
    {f}.clamp(-1, 1).exp()
    {f} / (1 + {n})
    {f} * {n}
    ({f} * 1).add_({f})
    ({f} * 1).mul_({k})
    {f}.double().float()
    {f}.to(torch.float64).to(torch.float32)
    {f}.clone()
    {f}.contiguous()
    {2}.t()
    {f}.transpose(0, -1)
    {3}.transpose(1, 2)
    {3}.permute(2, 0, 1)
    {4}.permute(0, 2, 1, 3)
    {4}.transpose(-1, -2)
    {f}.unsqueeze(0)
    {f}.unsqueeze(-1)
    {f}.squeeze()
    {f}.squeeze(0)
    {f}.squeeze(-1)
    {f}[0]
    {f}[-1]
    {f}[1:]
    {f}[:-1]
    {f}[:3]
    {f}[..., 1:]
    {f}[..., :2]
    {f}[:{n}]
    {f}[::2]
    {f}[..., ::2]
    {f}[{n} - 1:]
    {3}[:, -1]
    {3}[:, :, 0]
    {2}[:, None, :]
    {3}[:, None]
    {f}.narrow(0, 0, 1)
    {f}.flip(0)
    {f}.roll(1, -1)
    {f}.reshape(-1)
    {f}.flatten()
    {f}.reshape(-1, {k})
    {f}.view(-1)
    {f}.reshape({f}.shape)
    {3}.view({3}.shape[0], -1)
    {3}.reshape({3}.shape[0], {3}.shape[1], 2, -1)
    {3}.view({3}.size(0), {3}.size(1), 2, 4).transpose(1, 2)
    {3}.flatten(0, 1)
    {3}.flatten(1)
    {4}.flatten(2)
    {2}.unflatten(-1, (-1, 1))
    {f}.expand(2, *{f}.shape)
    {2}[:, :1].expand(-1, {n})
    {2}[:1].expand({n}, -1)
    {f}.unsqueeze(1).expand_as({f})
    {f}.repeat({k}, *[1] * ({f}.dim() - 1))
    {2}.tile(2, 1)
    {f}.repeat_interleave(2, 0)
    torch.cat([{f}, {f}])
    torch.cat([{f}, {f}], -1)
    torch.stack([{f}, {f}])
    torch.stack([{f}, {f}], -1)
    torch.cat([c.sum(0, keepdim=True) for c in {f}.split(2)])
    {f}.chunk(2)[0]
    {f}.chunk(2, -1)[-1]
    {f}.split(2, -1)[0]
    sum({f}.unbind(0))
    torch.tensor_split({f}, 2)[0]
    {f}.sum()
    {f}.sum(-1)
    {f}.sum(0)
    {f}.mean(-1, keepdim=True)
    {f}.mean((0, -1))
    {f}.amax(-1)
    {f}.max(-1)[0]
    {f}.max(0)[1].float()
    {f}.argmax(-1).float()
    {f}.std(-1)
    {f}.var(0, keepdim=True)
    {f}.cumsum(-1)
    {f}.softmax(-1)
    {f}.softmax(0)
    {f}.log_softmax(-1)
    {f}.logsumexp(-1)
    {f}.norm(dim=-1)
    F.normalize({f}, dim=-1)
    {f}.any(-1).float()
    {f}.prod(-1)
    {f}.topk(1, -1)[0]
    {f}.sort(-1)[0]
    F.layer_norm({f}, {f}.shape[-1:])
    F.layer_norm({3}, (8,), W1, W1)
    F.rms_norm({f}, {f}.shape[-1:])
    F.group_norm({3}, 1)
    {2} @ {2}.t()
    {2} @ {2}
    {3} @ {3}.transpose(1, 2)
    {3} @ {3}
    {4} @ {4}.transpose(2, 3)
    {3} @ W
    F.linear({3}, W, W1)
    torch.einsum("bt,bs->ts", {2}, {2})
    torch.einsum("btd,bsd->bts", {3}, {3})
    torch.outer({1}, {1})
    torch.bmm({3}, {3}.transpose(1, 2))
    torch.addmm({2}, {2}, {2})
    F.scaled_dot_product_attention({4}, {4}, {4})
    F.scaled_dot_product_attention({4}, {4}, {4}, is_causal=True)
    F.pad({f}, (1, 0))
    F.pad({f}, (0, {k}), value=1.0)
    F.pad({2}, (0, 0, 1, 1))
    torch.zeros({n}, 2)
    torch.ones({f}.shape)
    torch.zeros_like({f})
    {f}.new_zeros({n})
    {f}.new_ones({f}.shape[0], 2)
    torch.full(({n},), 0.5)
    torch.arange({n}).float()
    torch.arange(1, {n} + 1) * 0.5
    torch.arange(0, {n}, 2).float()
    torch.eye({n})
    torch.ones({n}, {n}).tril()
    torch.ones({n}, {n}).triu(1) * -1e9
    {2} + torch.arange({2}.shape[1])
    {3} + torch.arange({3}.shape[-1])
    F.embedding({i}, W)
    W[{i}]
    {f}[{i}[0] % 1]
    {f}.index_select(0, {i}.flatten()[:1] * 0)
    {f}.index_select(-1, ids[0] % {f}.shape[-1])
    {3}[:, ids[0] % {3}.shape[1]]
    {f}[..., ids[0] % {f}.shape[-1]]
    {f}[..., ids[:, 0] % {f}.shape[-1], None]
    {3}[ids[:, 0] % {3}.shape[0], :, ids[:, 0] % {3}.shape[2]]
    {3}[:, ids % {3}.shape[1]]
    {3}[:, :, ids.t() % {3}.shape[2]]
    {f}[None, ids[0] % {f}.shape[0]]
    {f}[ids.t() % {f}.shape[0]]
    {2}[ids % {2}.shape[0], ids % {2}.shape[1]]
    {3}[ids[:, :1] % {3}.shape[0], ids[0] % {3}.shape[1]]
    {4}[:, ids[0] % {4}.shape[1], :, ids[0] % {4}.shape[3]]
    {4}[:, :, ids[0] % {4}.shape[2], ids[:, :1] % {4}.shape[3]]
    {f}[..., torch.arange({f}.shape[-1] - 1, -1, -1)]
    {f}.expand(3, *{f}.shape)[:, ids[0] % {f}.shape[0]]
    {f}[{f} > 0].sum()
    {f}.masked_select({f} > 0)
    {f}.gather(-1, {f}.argsort(-1))
    {f}.take_along_dim({f}.argsort(0), 0)
    {f}.histc(4)
    {f}.index_put((ids[0] % {f}.shape[0],), torch.tensor(2.0), accumulate=True)
    {2}.scatter(1, ids % {2}.shape[1], 0.5)
    setitem({f}, (slice(None), ids[0] % {f}.shape[-1]), 0.5)
    setitem({3}, ids % {3}.shape[0], 0.5)
    setitem({f}, {f} > 0.5, 0.0)
    setitem({f}, (Ellipsis, ids[0] % {f}.shape[-1]), {f}[..., :1].clone())
    torch.arange({n}, 0, -1).float()
    torch.arange({n}, -{n}, -2).float()
    torch.as_strided({f}, (2, {n}), (1, 1))
    {2}.gather(1, ids[:, :1] * 0)
    F.one_hot(ids, 8).float()
    {3}.unfold(1, 2, 1)
    {f}.diagonal() if {f}.dim() > 1 else {f}
    F.max_pool1d({3}.contiguous(), 2)
    F.avg_pool1d({3}, 2)
    F.avg_pool2d({4}, 2)
    F.max_pool2d({4}, 2, 1)
    F.adaptive_avg_pool2d({4}, 1)
    F.interpolate({4}, scale_factor=2)
    F.interpolate({3}, scale_factor=2, mode="nearest")
    F.conv1d({3}, C1, padding=1)
    F.conv1d({3}.transpose(1, 2), C2)
    F.conv2d({4}[:, :1], C3, padding=1)
    F.conv2d({4}[:, :1], C3, stride=2)
    F.conv_transpose1d({3}, C1.transpose(0, 1), padding=1)
    F.conv_transpose2d({4}[:, :2], C3, stride=2)
    F.pad({3}, (1, 1), mode="reflect")
    F.pad({3}, (2, 1), mode="replicate")
    F.pad({4}, (1, 0, 0, 1), mode="reflect")
    F.pad({4}, (1, 0, 2, 1), mode="replicate")
    F.pad({3}, (1, 1), mode="circular")
    F.unfold({4}[:, :1], 2)
    F.unfold({4}, (2, 1), stride=(1, 2), padding=1)
    F.fold(F.unfold({4}, 2), {4}.shape[-2:], 2) if {4}.shape[-1] > 1 else {4}
    F.pixel_shuffle({4}.flatten(0, 1)[:4], 2)
    F.pixel_unshuffle({4}, 1)
    F.grid_sample({4}[:1], {3}[:1, None, :, :2].tanh(), align_corners=False)
    F.glu({f}, -1)
    F.logsigmoid({f})
    F.hardswish({f})
    F.prelu({f}, W1[:1])
    F.mse_loss({f}, {f})
    F.mse_loss({f}, {f}, reduction="none")
    F.smooth_l1_loss({f}, {f}, reduction="sum")
    F.huber_loss({f}, {f}, reduction="none")
    F.binary_cross_entropy_with_logits({f}, {f}.sigmoid())
    F.cross_entropy({2}, ids[:{2}.shape[0], 0] * 0)
    F.cross_entropy({3}, ids[:, :1].expand({3}.shape[0], {3}.shape[2]) * 0, reduction="none")
    F.nll_loss({2}.log_softmax(-1), ids[:{2}.shape[0], 0] * 0, reduction="none")
    F.embedding_bag(ids, W)
    F.embedding_bag(ids, W, mode="max")
    F.embedding_bag(ids.flatten(), W, ids[:, 0] * 0, mode="sum")
    F.instance_norm({3})
    F.batch_norm({3}, None, None, training=True)
    F.cosine_similarity({3}, {3}, -1)
    F.interpolate({4}, size=(3, 5), mode="bilinear")
    F.interpolate({4}, scale_factor=2, mode="bicubic")
    F.interpolate({3}, scale_factor=2, mode="linear")
    F.interpolate({4}, scale_factor=0.5, mode="nearest-exact")
    F.adaptive_max_pool2d({4}, 2)
    F.adaptive_avg_pool1d({3}, 3)
    torch.addmv({1}, {2}, {1})
    torch.addr({2}, {1}, {1})
    torch.cdist({3}, {3})
    torch.cdist({2}, {2}[:2], p=1)
    torch.dist({f}, {f})
    torch.aminmax({f}, dim=-1)[0]
    torch.diag_embed({f})
    torch.diag_embed({f}, 1, 0, -1)
    {2}.trace()
    torch.linspace(0, 1, {n})
    torch.meshgrid({1}, {1}, indexing="ij")[0]
    torch.searchsorted({1}.detach().sort()[0], {f}).float()
    torch.bucketize({f}, W1.detach().sort()[0]).float()
    {f}.take(ids * 0)
    {f}.cumprod(-1)
    {f}.kthvalue(1, -1)[0]
    {f}.median(-1)[0]
    {f}.rot90(1, (0, -1)) if {f}.dim() > 1 else {f}
    {2}.scatter(1, ids[:, :1] * 0, 1.0)
    torch.zeros_like({2}).scatter_add(1, ids * 0, {2})
    {f}.index_add(0, ids[0, :1] * 0, {f}[:1])
    {f}.index_fill(0, ids[0, :1] * 0, 0.5)
    {f}.index_copy(0, ids[0, :1] * 0, {f}[-1:])
    {2}.tril(1)
    {2}.triu(-1)
    {3}.as_strided(({3}.shape[0],), (1,))
    torch.view_as_real({f} + 0j).sum(-1)
    torch.fft.rfft({f}).abs()
    torch.fft.rfft({f}, dim=0).abs()
    torch.fft.irfft(torch.fft.rfft({f}), n={f}.shape[-1])
    torch.fft.irfft({f} + 0j, n={n} + 1)
    torch.fft.ifft({f} + 0j).abs()
    torch.fft.fft2({f}).abs() if {f}.dim() > 1 else {f}
    torch.fft.hfft({f} + 1j * {f}, n={f}.shape[-1])
    ({f} + 1j * {f}).conj().imag
    torch.view_as_real((({f} + 1j).conj().resolve_conj())).sum(-1)
    torch.linalg.qr({3} + 0.1)[1].abs()
    torch.linalg.svdvals({3}.tanh())
    torch.linalg.eigvalsh(({3} @ {3}.mT).tanh())
    torch.linalg.cholesky({3} @ {3}.mT + 9 * torch.eye({3}.shape[1]))
    torch.linalg.solve({3} @ {3}.mT + 9 * torch.eye({3}.shape[1]), {3})
    torch.linalg.solve_triangular({3} @ {3}.mT + 9 * torch.eye({3}.shape[1]), {3}, upper=False)
    torch.linalg.inv({2} @ {2}.t() + 9 * torch.eye({2}.shape[0]))
    torch.linalg.lu_factor({2} + 3)[0]
    torch.matrix_exp({2} @ {2}.t() / 99)
    torch.block_diag({2}, {2})
    torch.block_diag({1}, {2}.t())
    torch.kron({2}.contiguous(), {1})
    torch.kron({1}, {1})
    torch.cov({2})
    torch.corrcoef({2})
    torch.pdist({2})
    F.bilinear({3}, {3}, BL)
    F.interpolate({4}, scale_factor=1.5)
    F.interpolate({4}, scale_factor=(1.5, 0.7), mode="bilinear")
    F.interpolate({3}, scale_factor=1.1, mode="linear")
    F.instance_norm({3}, use_input_stats=True)
    F.embedding_bag(ids, W, mode="sum")
    GRU({3}.transpose(0, 1)[:3])[0] if {3}.shape[2] == 8 else {3}
    LSTM({3})[0] if {3}.shape[2] == 8 else {3}
    CELL({2}[:, :1] + torch.zeros(8))
    {f} * torch.hann_window({f}.shape[-1])
    {f} + torch.hamming_window({n} + {k}, periodic=False).sum()
    {f} * torch.kaiser_window({f}.shape[-1], False, beta={k}.5)
    {f} * torch.fft.fftfreq({f}.shape[-1], d={k}.0)
    {f} + torch.fft.rfftfreq({n} + 1).sum()
    {f} + torch.tril_indices({f}.shape[0], {n} + 1, {k}).sum()
    {f} + torch.triu_indices({f}.shape[0], {f}.shape[-1], -1).float().mean()
    torch.quantile({f}, 0.3, -1)
    torch.quantile({f}, 0.7, 0, keepdim=True, interpolation="nearest")
    {f}.nanquantile(0.5)
    {f}.quantile(torch.tensor([0.2, 0.9]), dim=0)
    torch.take_along_dim({f}, {f}.argsort(-1), -1)
    torch.take_along_dim({f}, {f}.argmax(0, keepdim=True), 0)
    torch.linalg.matrix_norm({3}.tanh(), 2)
    torch.linalg.norm({2}, -2, keepdim=True)
    torch.linalg.multi_dot([{2}, {2}.t(), {2}, {2}.t()]) if {2}.shape[0] > 1 else {2}
    torch.stft({2}, 4, 2, return_complex=True, center=False, window=W1[:4]).abs() if {2}.shape[1] > 4 else {2}
    torch.stft({2}, 6, 2, 4, W1[:4], return_complex=True, pad_mode="constant").real if {2}.shape[1] > 0 else {2}
    torch.fft.fft({f}).imag
    torch.fft.fft({f} + 1j * {f}).real.contiguous()
    F.max_pool3d({4}.unsqueeze(1).to(memory_format=torch.channels_last_3d), 1, 1).relu().squeeze(1)
    F.interpolate({4}.unsqueeze(0).contiguous(memory_format=torch.channels_last_3d), scale_factor=2)[0]
    F.avg_pool2d({4}.contiguous(memory_format=torch.channels_last), 1) + {4}
    F.layer_norm({f}, {f}.shape[-1:])
    {f} - {f}.mean(-1, keepdim=True)
    GRU({3}.contiguous())[0] if {3}.shape[2] == 8 else {3}
    {f} * min({f}.shape)
    {f} + 1 if {f}.shape[0] > 4 else {f} - 1
    {f} if {n} % 2 else {f} * 2
    {f} * ({f}.shape[-1] ** 0.5)
    {f} / math.sqrt({f}.size(-1))
    {f} * len({f})
    {f} * {f}.numel()
    {f} + {f}.stride(0)
    {f} * {f}.is_contiguous()
    {f} * {f}.shape.numel()
    setitem({f}, 0, 1.0)
    setitem({f}, slice(None, 2), {f}.sum())
    setitem({f}, (Ellipsis, -1), 0.5)
    {2}.masked_fill(~m[:, 0], 0.0)
    {3}.masked_fill(~m.transpose(1, 2), 0.0)
    ({3} @ {3}.transpose(1, 2)).masked_fill(~m, -1e9).softmax(-1)
"""
NUMBERS = """
    {f}.shape[0]
    {f}.shape[-1]
    {f}.size(0)
    len({f})
    x.shape[1]
    {f}.shape[0] + 1
    {f}.shape[0] * 2
    {f}.shape[-1] // 2
    min({f}.shape[0], 3)
    max({f}.shape[-1], 2)
    {f}.shape[0] + {f}.shape[-1]
"""
_ROWS = [row.strip() for row in ROWS.strip().splitlines()]
_NUMBERS = [row.strip() for row in NUMBERS.strip().splitlines()]
_HOLE = re.compile(r"\{(\w)\}")
MOST_ELEMS = 20_000


def setitem(tensor, key, value):
    """A copy of `tensor` with an item set."""
    made = tensor.clone()
    made[key] = value
    return made


def world() -> dict:
    """The names that programs know besides their arguments."""
    chance = torch.Generator().manual_seed(5)
    with torch.random.fork_rng():
        torch.manual_seed(6)
        layers = {"GRU": torch.nn.GRU(8, 3), "LSTM": torch.nn.LSTM(8, 3), "CELL": torch.nn.GRUCell(8, 3)}
    return layers | {
        "torch": torch, "F": F, "math": math, "setitem": setitem,
        "W": torch.randn(8, 8, generator=chance), "W1": torch.randn(8, generator=chance),
        "C1": torch.randn(3, 5, 3, generator=chance), "C2": torch.randn(4, 8, 1, generator=chance),
        "C3": torch.randn(2, 1, 3, 3, generator=chance), "BL": torch.randn(4, 8, 8, generator=chance),
    }


def arguments(batch: int, length: int, seed: int = 0) -> tuple:
    """x, y, m, ids of these sizes."""
    chance = torch.Generator().manual_seed(seed * 1000 + batch * 37 + length)
    return (
        torch.randn(batch, length, generator=chance),
        torch.randn(batch, length, 8, generator=chance),
        torch.rand(batch, 1, length, generator=chance) > 0.3,
        torch.randint(0, 8, (batch, length), generator=chance),
    )


def views(batch: int, length: int) -> tuple:
    """Arguments of these sizes that are parts of longer tensors: strides do not follow from sizes."""
    x, y, m, ids = arguments(batch, length + 2)
    return x[:, 1:-1], y[:, 1:-1], m[..., 1:-1], ids[:, 2:]


def write(chance: random.Random, sizes: tuple[int, int], most: int = 8) -> str:
    """A program that runs at `sizes`."""
    names = world() | dict(zip(("x", "y", "m", "ids"), arguments(*sizes)))
    floats, lines = ["x", "y"], []

    def fill(row: str) -> str:
        def one(hole: re.Match) -> str:
            kind = hole.group(1)
            if kind == "n":
                return f"({fill(chance.choice(_NUMBERS))})"
            if kind == "k":
                return str(chance.randint(1, 3))
            if kind == "i":
                return "ids"
            ranks = [n for n in floats if kind == "f" or names[n].dim() == int(kind)]
            if not ranks:
                raise LookupError(kind)
            return chance.choice(ranks[-3:] if chance.random() < 0.6 else ranks)
        return _HOLE.sub(one, row)

    for _ in range(chance.randint(2, most)):
        for _ in range(20):
            name = f"a{len(lines)}"
            try:
                text = fill(chance.choice(_ROWS))
                made = eval(text, names)  # noqa: S307 - our own text
            except Exception:  # it does not run at these sizes
                continue
            if isinstance(made, torch.Tensor) and 0 < made.numel() <= MOST_ELEMS:
                names[name] = made
                lines.append(f"    {name} = {text}")
                floats.append(name)
                break
    made = floats[2:]
    result = ", ".join(chance.sample(made, min(len(made), 3))) if made else "x"
    numbers = fill(chance.choice(_NUMBERS))
    return "\n".join([
        "def program(x, y, m, ids):", *lines, f"    return {result}, {numbers}", ""])


def compiled_text(text: str):
    """The function that `text` defines, with its source known to tracebacks."""
    file = f"<sizes {abs(hash(text))}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    names = world()
    exec(compile(text, file, "exec"), names)  # noqa: S102 - our own text
    return names["program"]
