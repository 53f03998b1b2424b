"""What the operator suite knows beforehand: which results are undefined, which operators run eager.

Every operator that is not named in `EAGER` must be captured; of one that is named, samples may run
eager for the reason given and for no other.
"""

# Results are whatever memory held: only dtype, sizes and strides mean something.
UNDEFINED: dict[str, str] = {
    name: "uninitialised memory"
    for name in (
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
    )
}

# name -> (the break that every sample that runs eager must report, why it cannot be captured)
_SIZE = "data_dependent_shape", "the size of its result follows from values"
_NUMBER = "data_dependent_number", "it gives, or decides by, the value of a tensor"
_RESIZE = "metadata_write", "it changes the sizes of an existing tensor"
_CLASS = "outside_iterator", "it defines a torch.autograd.Function, whose number torch counts up"
_WARNS = "host_call", "it warns, and whether a warning is shown again is the interpreter's state"
_CUDA = "", "it raises: there is no jiterator on the CPU"
EAGER: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        (
            "argwhere",
            "bincount",
            "combinations",
            "linalg.lstsq",
            "linalg.lstsq.grad_oriented",
            "masked_select",
            "nn.functional.ctc_loss",
            "nonzero",
            "repeat_interleave",
            "unique",
            "unique_consecutive",
        ),
        _SIZE,
    ),
    **dict.fromkeys(
        ("allclose", "cov", "equal", "item", "narrow", "nn.functional.one_hot"), _NUMBER
    ),
    "nn.functional.gaussian_nll_loss": (
        "data_dependent_branch", "asks whether a variance is negative, to raise"),
    "tensor_split": ("data_dependent_number", "sections in a tensor are read through its pointer"),
    **dict.fromkeys(("resize_", "resize_as_"), _RESIZE),
    "to_sparse": ("tensor_subclass", "a sparse tensor is no strided one"),
    **dict.fromkeys(
        (
            f"masked.{name}"
            for name in (
                "amax amin argmax argmin cumprod cumsum log_softmax logaddexp logsumexp mean median "
                "norm normalize prod softmax softmin std sum var"
            ).split()
        ),
        _CLASS,
    ),
    **dict.fromkeys(
        (
            f"nn.functional.{name}"
            for name in (
                "dropout2d kl_div linear_cross_entropy.chunked "
                "linear_cross_entropy.chunked_none upsample_bilinear upsample_nearest"
            ).split()
        ),
        _WARNS,
    ),
    **dict.fromkeys(
        (
            f"jiterator_{name}"
            for name in (
                "2inputs_2outputs 4inputs_with_extra_args binary binary_return_by_ref unary"
            ).split()
        ),
        _CUDA,
    ),
}

# (name, dtype) -> why the comparison cannot be made; none may be a wrong result
ELSEWHERE: dict[tuple[str, str], str] = {
    (name, dtype): "torch cannot deep-copy a CSR tensor, so the comparison has no fresh arguments"
    for name, dtype in (
        ("sparse.sampled_addmm", "float32"),
        ("sparse.mm.reduce", "float32"),
        ("sparse.mm.reduce", "bfloat16"),
    )
}
