"""The kinds of processor that the kernels are compiled for. `hatch_build.py` reads this too: no imports here."""

_AVX2 = ("-mavx2", "-mfma")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
_VNNI = (*_AVX512, "-mavx512vnni")

_BF16 = (*_VNNI, "-mavx512bf16")

# What the compiler is told for each, the best one first.
LEVELS = {
    "amx": (*_BF16, "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
    "avx512bf16": _BF16,
    "avx512vnni": _VNNI,
    "avx512": _AVX512,
    "avxvnni": (*_AVX2, "-mavxvnni"),
    "avx2": _AVX2,
    "plain": (),
}
