"""A program for each size rule that the other tables do not reach: by the rules that it uses, with x: [b, n].

    "addr": lambda x: torch.addr(x, x[:, 0], x[0])      the rule of aten.addr, at sizes that are symbols
"""

import torch
import torch.nn.functional as F

A = torch.ops.aten


def row(x):
    return x[None]


def image(x):
    return x[None, None]


def volume(x):
    return x[None, None, None]


def deep(x):
    return volume(x).expand(1, 1, 3, -1, -1)


def long(x, most):
    """Integers below `most`, as many as x has elements."""
    return torch.arange(x.numel()).view(x.shape) % most


def places(x):
    """Indices of rows, one for each."""
    return torch.arange(x.shape[0] - 1, -1, -1)


def positive(x):
    return x @ x.t() + 9 * torch.eye(x.shape[0])


def bags(x, **given):
    index = torch.arange(x.shape[0] * 2) % 3
    return F.embedding_bag(index, x[:3], torch.arange(0, x.shape[0] * 2, 2), **given)


def noise(x, name, *given):
    return getattr(torch.zeros_like(x), name)(*given)


# Of values alone.
FORWARD = {
    "_addmm_activation": lambda x: A._addmm_activation(x[:, 0], x, x.t()),
    "_cdist_forward": lambda x: torch.cdist(x, x + 1, p=3.0),
    "_embedding_bag_forward_only": lambda x: bags(x),
    "_embedding_bag_dense_backward": lambda x: A._embedding_bag_dense_backward(
        x[:2], torch.tensor([0, 2, 1]), torch.tensor([0, 0, 1]), torch.tensor([2, 1]), torch.tensor([1, 0]), x.shape[0], False, 0, None),
    "_euclidean_dist": lambda x: A._euclidean_dist(x, x + 1),
    "_is_all_true": lambda x: A._is_all_true(x > -9),
    "_is_any_true": lambda x: A._is_any_true(x > 9),
    "_linalg_det": lambda x: torch.linalg.det(positive(x)),
    "_linalg_eigvals": lambda x: A._linalg_eigvals(positive(x)).abs().sum(),
    "_log_softmax": lambda x: x.log_softmax(0),
    "_native_batch_norm_legit_no_training": lambda x: A._native_batch_norm_legit_no_training(
        x[:, :3], None, None, torch.zeros(3), torch.ones(3), 0.1, 1e-5)[0],
    "_prelu_kernel": lambda x: F.prelu(x, torch.tensor(0.2)),
    "_scaled_dot_product_flash_attention_for_cpu": lambda x: F.scaled_dot_product_attention(*[image(x)] * 3),
    "_unsafe_index_put": lambda x: A._unsafe_index_put(x, [places(x)], x * 2),
    "_upsample_bicubic2d_aa": lambda x: F.interpolate(image(x), scale_factor=2, mode="bicubic", antialias=True),
    "_upsample_nearest_exact1d": lambda x: F.interpolate(row(x), scale_factor=2, mode="nearest-exact"),
    "_upsample_nearest_exact3d": lambda x: F.interpolate(volume(x), scale_factor=2, mode="nearest-exact"),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(image(x), (2, 3)),
    "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(volume(x), (1, 2, 3)),
    "_adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(volume(x), (1, 2, 3)),
    "addbmm": lambda x: torch.addbmm(x, row(x), row(x.t() @ x)),
    "addmv": lambda x: torch.addmv(x[:, 0], x, x[0]),
    "addr": lambda x: torch.addr(x, x[:, 0], x[0]),
    "baddbmm": lambda x: torch.baddbmm(row(x), row(x), row(x.t() @ x)),
    "alias": lambda x: A.alias(x) + 1,
    "all": lambda x: (x > 0).all(1),
    "aminmax": lambda x: torch.aminmax(x, dim=1),
    "as_strided_scatter": lambda x: torch.as_strided_scatter(x, x[0] * 2, (x.shape[1],), (1,)),
    "aten.max.default": lambda x: x.max(),
    "aten.min.default": lambda x: x.min(),
    "aten.median.default": lambda x: x.median(),
    "aten.nanmedian.default": lambda x: x.nanmedian(),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "bernoulli_": lambda x: noise(x, "bernoulli_", 0.5),
    "cauchy_": lambda x: noise(x, "cauchy_"),
    "exponential_": lambda x: noise(x, "exponential_"),
    "geometric_": lambda x: noise(x, "geometric_", 0.3),
    "log_normal_": lambda x: noise(x, "log_normal_"),
    "normal_": lambda x: noise(x, "normal_"),
    "uniform_": lambda x: noise(x, "uniform_"),
    "random_": lambda x: noise(x, "random_", 5),
    "normal": lambda x: torch.normal(x, x.sigmoid()),
    "rand": lambda x: torch.rand(x.shape[1], 3),
    "randn": lambda x: torch.randn(x.shape[1], 3),
    "randint": lambda x: torch.randint(9, (x.shape[0],)),
    "rand_like": lambda x: torch.rand_like(x),
    "randn_like": lambda x: torch.randn_like(x),
    "randint_like": lambda x: torch.randint_like(x, 9),
    "randperm": lambda x: torch.randperm(x.shape[0]),
    "multinomial": lambda x: torch.multinomial(x.sigmoid(), 2),
    "native_dropout": lambda x: A.native_dropout(x, 0.5, True)[0],
    "rrelu_with_noise": lambda x: F.rrelu(x, training=True),
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(x.sigmoid(), x.sigmoid(), reduction="none"),
    "bucketize": lambda x: torch.bucketize(x, torch.arange(5.0)),
    "searchsorted": lambda x: torch.searchsorted(x.sort(1)[0], x),
    "channel_shuffle": lambda x: F.channel_shuffle(x[:, :4][:, :, None, None], 2),
    "cholesky": lambda x: torch.cholesky(positive(x)),
    "col2im": lambda x: F.fold(x[:1, :1, None].expand(1, 4, 9), (4, 4), 2),
    "im2col": lambda x: F.unfold(image(x), 2),
    "copy": lambda x: A.copy(x, x[:1]),
    "count_nonzero": lambda x: torch.count_nonzero(x, 1),
    "cummax": lambda x: x.cummax(1),
    "cummin": lambda x: x.cummin(0),
    "cumprod": lambda x: x.cumprod(1),
    "cumsum_": lambda x: x.clone().cumsum_(1),
    "diagonal_copy": lambda x: torch.diagonal_copy(x, 1),
    "diagonal_scatter": lambda x: torch.diagonal_scatter(x, x.diagonal() * 2),
    "dist": lambda x: torch.dist(x, x * 2),
    "dot": lambda x: x[0].dot(x[1]),
    "vdot": lambda x: torch.vdot(x[0], x[1]),
    "mv": lambda x: x.mv(x[0]),
    "embedding": lambda x: F.embedding(long(x, 4), x),
    "empty": lambda x: torch.empty(x.shape[0], 3).fill_(1),
    "empty_like": lambda x: torch.empty_like(x).fill_(1),
    "empty_strided": lambda x: torch.empty_strided((x.shape[0], 2), (2, 1)).fill_(1),
    "new_empty_strided": lambda x: x.new_empty_strided((x.shape[0], 2), (2, 1)).fill_(1),
    "new_full": lambda x: x.new_full((x.shape[1],), 3.0),
    "new_ones": lambda x: x.new_ones(x.shape[1], 2),
    "ones_like": lambda x: torch.ones_like(x),
    "zeros_like": lambda x: torch.zeros_like(x),
    "zero": lambda x: A.zero(x),
    "zero_": lambda x: x.clone().zero_(),
    "fill": lambda x: A.fill(x, 2.0),
    "expand_copy": lambda x: torch.expand_copy(x[:1], x.shape),
    "floor_divide": lambda x: torch.floor_divide(x, 2.0),
    "glu": lambda x: F.glu(torch.cat([x, x], 1)),
    "fractional_max_pool3d": lambda x: F.fractional_max_pool3d(
        deep(x), (1, 2, 2), output_size=(2, 2, 3), _random_samples=torch.full((1, 1, 3), 0.5)),
    "geqrf": lambda x: torch.geqrf(x),
    "grid_sampler_2d": lambda x: F.grid_sample(image(x), x[None, :, :2, None].expand(1, -1, 2, 2) * 0.1, align_corners=False),
    "grid_sampler_3d": lambda x: F.grid_sample(volume(x), x[None, :, :3, None, None].expand(1, -1, 3, 2, 3) * 0.1, align_corners=False),
    "hardswish": lambda x: F.hardswish(x),
    "histc": lambda x: torch.histc(x, 4),
    "huber_loss": lambda x: F.huber_loss(x, x * 2, reduction="none"),
    "index": lambda x: x[places(x)],
    "index_add": lambda x: x.index_add(0, places(x), x),
    "index_add_": lambda x: x.clone().index_add_(0, places(x), x),
    "index_copy": lambda x: x.index_copy(0, places(x), x),
    "index_copy_": lambda x: x.clone().index_copy_(0, places(x), x),
    "index_fill": lambda x: x.index_fill(0, places(x)[:2], 1.0),
    "index_fill_": lambda x: x.clone().index_fill_(0, places(x)[:2], 1.0),
    "index_put": lambda x: x.index_put((places(x),), x),
    "index_put_": lambda x: x.clone().index_put_((places(x),), x),
    "index_reduce": lambda x: x.index_reduce(0, places(x), x, "amax"),
    "index_select": lambda x: x.index_select(0, places(x)),
    "isin": lambda x: torch.isin(long(x, 5), torch.tensor([1, 3])),
    "kthvalue": lambda x: x.kthvalue(2, 1),
    "lift": lambda x: A.lift(x) + 1,
    "linalg_cross": lambda x: torch.linalg.cross(x[:, :3], x[:, 1:4]),
    "log_sigmoid_forward": lambda x: F.logsigmoid(x),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "masked_scatter": lambda x: x.masked_scatter(x > 0, x * 2),
    "masked_scatter_": lambda x: x.clone().masked_scatter_(x > 0, x * 2),
    "median": lambda x: x.median(1),
    "min": lambda x: x.min(1),
    "mode": lambda x: x.mode(1),
    "mse_loss": lambda x: F.mse_loss(x, x * 2, reduction="none"),
    "multi_margin_loss": lambda x: F.multi_margin_loss(x, long(x[:, 0], 3)),
    "multilabel_margin_loss_forward": lambda x: F.multilabel_margin_loss(x, long(x, 3)),
    "nanmedian": lambda x: x.nanmedian(1),
    "nansum": lambda x: x.nansum(1),
    "nll_loss_forward": lambda x: F.nll_loss(x, long(x[:, 0], 3)),
    "nll_loss2d_forward": lambda x: F.nll_loss(x[None, :4].expand(2, -1, -1)[..., None], long(x[:2], 3)[:, :, None]),
    "norm": lambda x: A.norm.ScalarOpt_dim(x, 3, [1]),
    "permute_copy": lambda x: torch.permute_copy(x, (1, 0)),
    "polar": lambda x: torch.polar(x.abs(), x),
    "prod": lambda x: x.prod(1),
    "put": lambda x: x.put(places(x), x[:, 0]),
    "reflection_pad2d": lambda x: F.pad(image(x), (1, 2, 0, 1), "reflect"),
    "reflection_pad3d": lambda x: F.pad(deep(x), (1, 2, 0, 1, 1, 0), "reflect"),
    "replication_pad1d": lambda x: F.pad(row(x), (1, 2), "replicate"),
    "replication_pad2d": lambda x: F.pad(image(x), (1, 2, 0, 1), "replicate"),
    "replication_pad3d": lambda x: F.pad(volume(x), (1, 2, 0, 1, 1, 0), "replicate"),
    "renorm": lambda x: x.renorm(2, 0, 1.0),
    "rot90": lambda x: x.rot90(),
    "rsub": lambda x: torch.rsub(x, x * 2),
    "scatter": lambda x: x.scatter(0, long(x, 3), x),
    "scatter_": lambda x: x.clone().scatter_(0, long(x, 3), x),
    "scatter_add": lambda x: x.scatter_add(0, long(x, 3), x),
    "scatter_add_": lambda x: x.clone().scatter_add_(0, long(x, 3), x),
    "scatter_reduce": lambda x: x.scatter_reduce(0, long(x, 3), x, "amax"),
    "scatter_reduce_": lambda x: x.clone().scatter_reduce_(0, long(x, 3), x, "amax"),
    "select_copy": lambda x: torch.select_copy(x, 1, 2),
    "select_scatter": lambda x: x.select_scatter(x[0] * 2, 0, 1),
    "slice_copy": lambda x: torch.slice_copy(x, 1, 1, 3),
    "slice_scatter": lambda x: x.slice_scatter(x[:2] * 2, 0, 0, 2),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x * 2, reduction="none"),
    "soft_margin_loss": lambda x: F.soft_margin_loss(x, x.sign(), reduction="none"),
    "split_copy": lambda x: torch.split_copy(x[:, :4], 2, 1),
    "split_with_sizes": lambda x: x.split([1, x.shape[1] - 1], 1),
    "split_with_sizes_copy": lambda x: torch.split_with_sizes_copy(x, [1, x.shape[1] - 1], 1),
    "unsafe_split_with_sizes": lambda x: torch.unsafe_split_with_sizes(x, [1, x.shape[1] - 1], 1),
    "squeeze_copy": lambda x: torch.squeeze_copy(row(x), 0),
    "std": lambda x: x.std(1),
    "std_mean": lambda x: torch.std_mean(x, 1),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "t_copy": lambda x: torch.t_copy(x),
    "take": lambda x: x.take(places(x)),
    "trace": lambda x: x.trace(),
    "transpose_copy": lambda x: torch.transpose_copy(x, 0, 1),
    "tril_": lambda x: x.clone().tril_(),
    "triu": lambda x: x.triu(1),
    "triu_": lambda x: x.clone().triu_(),
    "unbind_copy": lambda x: torch.unbind_copy(x[:, :3], 1),
    "unfold_copy": lambda x: torch.unfold_copy(x, 1, 2, 1),
    "unsqueeze_copy": lambda x: torch.unsqueeze_copy(x, 1),
    "upsample_nearest1d": lambda x: F.interpolate(row(x), scale_factor=2),
    "view_as_complex": lambda x: torch.view_as_complex(torch.stack([x, x], 2)),
    "view_copy": lambda x: torch.view_copy(x, (-1,)),
    "max_unpool2d": lambda x: F.max_unpool2d(*F.max_pool2d(image(x), 2, return_indices=True), 2, output_size=image(x).shape),
    "max_unpool3d": lambda x: F.max_unpool3d(*F.max_pool3d(deep(x), 2, return_indices=True), 2, output_size=deep(x).shape),
    "linalg_ldl_solve": lambda x: torch.linalg.ldl_solve(*torch.linalg.ldl_factor(positive(x)), x),
}
# Of a backward: what is given has a gradient.
BACKWARD = {
    "_adaptive_avg_pool2d_backward": lambda x: F.adaptive_avg_pool2d(image(x), (2, 3)),
    "_adaptive_avg_pool3d_backward": FORWARD["_adaptive_avg_pool3d"],
    "_cdist_backward": FORWARD["_cdist_forward"],
    "_pdist_backward": lambda x: F.pdist(x),
    "_log_softmax_backward_data": FORWARD["_log_softmax"],
    "_softmax_backward_data": lambda x: x.softmax(1),
    "_prelu_kernel_backward": FORWARD["_prelu_kernel"],
    "_embedding_bag _embedding_bag_backward": lambda x: bags(x),
    "_embedding_bag_per_sample_weights_backward": lambda x: bags(x, mode="sum", per_sample_weights=x.sum(1).repeat(2)),
    "_scaled_dot_product_flash_attention_for_cpu_backward": FORWARD["_scaled_dot_product_flash_attention_for_cpu"],
    "_upsample_bicubic2d_aa_backward": FORWARD["_upsample_bicubic2d_aa"],
    "_upsample_bilinear2d_aa_backward": lambda x: F.interpolate(image(x), scale_factor=2, mode="bilinear", antialias=True),
    "_upsample_nearest_exact1d_backward": FORWARD["_upsample_nearest_exact1d"],
    "_upsample_nearest_exact2d_backward": lambda x: F.interpolate(image(x), scale_factor=2, mode="nearest-exact"),
    "_upsample_nearest_exact3d_backward": FORWARD["_upsample_nearest_exact3d"],
    "adaptive_max_pool2d_backward": FORWARD["adaptive_max_pool2d"],
    "adaptive_max_pool3d_backward": FORWARD["adaptive_max_pool3d"],
    "avg_pool2d_backward": lambda x: F.avg_pool2d(image(x), 2),
    "avg_pool3d_backward": lambda x: F.avg_pool3d(volume(x), (1, 2, 2)),
    "binary_cross_entropy_backward": lambda x: F.binary_cross_entropy(x.sigmoid(), (x.detach() > 0).float()),
    "convolution_backward": lambda x: F.conv2d(image(x), image(x)[..., :2, :2]),
    "diagonal_backward": lambda x: x.diagonal(1).sin(),
    "elu_backward": lambda x: F.elu(x),
    "embedding_dense_backward": FORWARD["embedding"],
    "glu_backward": FORWARD["glu"],
    "fractional_max_pool2d_backward": lambda x: F.fractional_max_pool2d(
        image(x), 2, output_size=(2, 3), _random_samples=torch.full((1, 1, 2), 0.5)),
    "fractional_max_pool3d_backward": FORWARD["fractional_max_pool3d"],
    "grid_sampler_2d_backward": FORWARD["grid_sampler_2d"],
    "grid_sampler_3d_backward": FORWARD["grid_sampler_3d"],
    "hardshrink_backward": lambda x: F.hardshrink(x),
    "hardsigmoid_backward": lambda x: F.hardsigmoid(x),
    "hardswish_backward": FORWARD["hardswish"],
    "hardtanh_backward": lambda x: F.hardtanh(x),
    "huber_loss_backward": lambda x: F.huber_loss(x, x.detach() * 2),
    "leaky_relu_backward": lambda x: F.leaky_relu(x),
    "log_sigmoid_backward": FORWARD["log_sigmoid_forward"],
    "masked_scatter_backward": FORWARD["masked_scatter"],
    "max_pool2d_with_indices_backward": lambda x: F.max_pool2d(image(x), 2),
    "max_pool3d_with_indices_backward": lambda x: F.max_pool3d(volume(x), (1, 2, 2)),
    "mish_backward": lambda x: F.mish(x),
    "mse_loss_backward": FORWARD["mse_loss"],
    "native_batch_norm_backward": lambda x: F.instance_norm(image(x)),
    "native_dropout_backward": FORWARD["native_dropout"],
    "native_group_norm_backward": lambda x: F.group_norm(x[:, :4], 2),
    "native_layer_norm_backward": lambda x: F.layer_norm(x, x.shape[1:]),
    "nll_loss_backward": FORWARD["nll_loss_forward"],
    "nll_loss2d_backward": FORWARD["nll_loss2d_forward"],
    "reflection_pad1d_backward": lambda x: F.pad(row(x), (1, 2), "reflect"),
    "reflection_pad2d_backward": FORWARD["reflection_pad2d"],
    "reflection_pad3d_backward": FORWARD["reflection_pad3d"],
    "replication_pad1d_backward": FORWARD["replication_pad1d"],
    "replication_pad2d_backward": FORWARD["replication_pad2d"],
    "replication_pad3d_backward": FORWARD["replication_pad3d"],
    "select_backward": lambda x: x[1].sin(),
    "slice_backward": lambda x: x[1:].sin(),
    "smooth_l1_loss_backward": FORWARD["smooth_l1_loss"],
    "soft_margin_loss_backward": lambda x: F.soft_margin_loss(x, x.detach().sign()),
    "softplus_backward": lambda x: F.softplus(x),
    "softshrink_backward": lambda x: F.softshrink(x),
    "threshold_backward": lambda x: x.relu(),
    "unfold_backward": lambda x: x.unfold(1, 2, 1).sin(),
    "upsample_bicubic2d_backward": lambda x: F.interpolate(image(x), scale_factor=2, mode="bicubic"),
    "upsample_bilinear2d_backward": lambda x: F.interpolate(image(x), scale_factor=2, mode="bilinear"),
    "upsample_linear1d_backward": lambda x: F.interpolate(row(x), scale_factor=2, mode="linear"),
    "upsample_nearest1d_backward": FORWARD["upsample_nearest1d"],
    "upsample_nearest2d_backward": lambda x: F.interpolate(image(x), scale_factor=2),
    "upsample_nearest3d_backward": lambda x: F.interpolate(volume(x), scale_factor=2),
    "upsample_trilinear3d_backward": lambda x: F.interpolate(volume(x), scale_factor=2, mode="trilinear"),
}
