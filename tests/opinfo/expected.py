"""What the operator suite knows beforehand: which results are undefined, which operators run eager.

Every operator that is not named in `EAGER` must be captured; one that is named and is captured all
the same fails too, so the list stays true.
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

# name -> why a call of it is not captured and runs eager
EAGER: dict[str, str] = {}

# (name, dtype) -> why the comparison cannot be made; none may be a wrong result
ELSEWHERE: dict[tuple[str, str], str] = {
    (name, dtype): "torch cannot deep-copy a CSR tensor, so the comparison has no fresh arguments"
    for name, dtype in (
        ("sparse.sampled_addmm", "float32"),
        ("sparse.mm.reduce", "float32"),
        ("sparse.mm.reduce", "bfloat16"),
    )
}
