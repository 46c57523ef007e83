"""Builds the CPU kernels when there is a C++ compiler; without one the package installs and works without them."""

from __future__ import annotations

import glob
import platform
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

KERNELS = {  # library: folder with dispatch.cpp, portable.cpp, avx2.cpp and perhaps avx512.cpp
    "dasmil.ops.das_attention._kernel": "src/dasmil/ops/das_attention/kernel",
    "dasmil.ops.conv_pool._kernel": "src/dasmil/ops/conv_pool/kernel",
}
FLAGS = [
    "-O3",
    "-g0",
    "-std=c++17",
    "-fvisibility=hidden",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
]
FLAGS += ["-fno-tree-slp-vectorize", "-Wno-psabi"]
AVX512 = ["-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mavx2", "-mfma"]
X86 = platform.machine().lower() in ("x86_64", "amd64", "i686")


class BuildKernel(build_ext):
    """A plain shared library: no Python in it, each file with its own instruction set."""

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + (".dll" if sys.platform == "win32" else ".so")

    def build_extension(self, ext: Extension) -> None:
        try:
            self._build(ext, ["-fopenmp"])
        except Exception as error:
            print(f"the kernel cannot be built with OpenMP, trying without: {error}")
            self._build(ext, [])

    def _build(self, ext: Extension, openmp: list[str]) -> None:
        folder = KERNELS[ext.name]
        files = {"dispatch.cpp": [], "portable.cpp": []}
        if X86:
            files["avx2.cpp"] = ["-mavx2", "-mfma"]
            files["dispatch.cpp"].append("-DDAS_WITH_AVX2")
        if X86 and Path(folder, "avx512.cpp").exists():
            files["avx512.cpp"] = AVX512
            files["dispatch.cpp"].append("-DDAS_WITH_AVX512")
        objects = [
            path
            for name, flags in files.items()
            for path in self.compiler.compile(
                [f"{folder}/{name}"],
                output_dir=self.build_temp,
                extra_postargs=[*FLAGS, *openmp, *flags],
                depends=glob.glob(f"{folder}/*.h"),
            )
        ]
        target = self.get_ext_fullpath(ext.name)
        self.compiler.link_shared_object(objects, target, extra_postargs=openmp, target_lang="c++")


class PlatformWheel(bdist_wheel):
    """One wheel for every Python of a platform: the kernels know nothing of Python's binary interface."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    # optional: a failing compiler is reported and the installation goes on.
    ext_modules=[
        Extension(name, sorted(glob.glob(f"{folder}/*.cpp")), optional=True) for name, folder in KERNELS.items()
    ],
    cmdclass={"build_ext": BuildKernel, "bdist_wheel": PlatformWheel},
)
