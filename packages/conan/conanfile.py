"""Conan 2 recipe: builds libfastnorm for CPUs from the source archive that conandata.yml names."""

from pathlib import Path

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.files import copy, get, rmdir
from conan.tools.layout import basic_layout
from conan.tools.meson import Meson, MesonToolchain

required_conan_version = ">=2.0"


class FastnormConan(ConanFile):
    name = "fastnorm"
    description = "RMSNorm and LayerNorm for transformer models, on NVIDIA GPUs and CPUs"
    license = "Apache-2.0"
    author = "The libfastnorm authors"
    homepage = "https://github.com/libfastnorm/libfastnorm"
    url = homepage
    topics = ("rmsnorm", "layernorm", "transformer", "inference", "simd")
    package_type = "library"
    settings = "os", "compiler", "build_type", "arch"
    options = {"shared": [True, False], "fPIC": [True, False], "tools": [True, False]}
    default_options = {"shared": True, "fPIC": True, "tools": False}
    implements = ["auto_shared_fpic"]

    def layout(self):
        basic_layout(self, src_folder="src")

    def validate(self):
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration(
                f"os is {self.settings.os}; required: Linux, which libfastnorm is for"
            )
        if self.settings.arch not in ("x86_64", "armv8"):
            raise ConanInvalidConfiguration(
                f"arch is {self.settings.arch}; required: x86_64 or armv8"
            )

    def build_requirements(self):
        self.tool_requires("meson/[>=1.4.0 <2]")

    def requirements(self):
        if self.options.tools:
            self.requires("cli11/[>=2.3 <3]")
            self.requires("nlohmann_json/[>=3.11 <4]")

    def source(self):
        get(self, **self.conan_data["sources"][self.version], strip_root=True)

    def generate(self):
        toolchain = MesonToolchain(self)
        # Users see C alone, so that the profile's compiler.cppstd is not that of the library.
        toolchain.cpp_std = "c++20"
        toolchain.project_options.update(
            {
                "cuda": "disabled",
                "tests": False,
                "bench": False,
                "simt": False,
                "tools": bool(self.options.tools),
            }
        )
        toolchain.generate()

    def build(self):
        meson = Meson(self)
        meson.configure()
        meson.build()

    def package(self):
        Meson(self).install()
        folder = Path(self.package_folder)
        copy(self, "LICENSE", self.source_folder, str(folder / "licenses"))
        # Conan's generators write these for whoever consumes the package.
        for name in ("pkgconfig", "cmake"):
            rmdir(self, str(folder / "lib" / name))

    def package_info(self):
        self.cpp_info.libs = ["fastnorm"]
        self.cpp_info.set_property("cmake_file_name", "fastnorm")
        self.cpp_info.set_property("cmake_target_name", "fastnorm::fastnorm")
        self.cpp_info.set_property("pkg_config_name", "fastnorm")
        if not self.options.shared:
            self.cpp_info.system_libs = ["stdc++", "pthread", "dl", "m", "rt"]
