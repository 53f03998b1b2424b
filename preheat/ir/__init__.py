"""The nouns that every stage shares: immutable, printable, with a content digest.

    scalar   Scalar, Dim                 numbers known when the program runs
    types    TensorType, Layout facts    what a value is
    graph    Ref, Op, Graph              what is computed (levels aten and core)
    ops      OpSpec, CORE                what each core op means
    loop     Kernel, Stage, Access       how a fused group is computed (level loop)
    trace    Source, Guard, Recipe, Node, Point, Trace      what a capture knows
    plan     Buffer, Call, Plan, Target, Image, Artifact    what runs
    pack     encode, decode, digest      nouns to bytes and back
    text     show, parse                 nouns to text and back (words, text_loop, text_trace)
    verify   verify                      what must hold between passes
"""
