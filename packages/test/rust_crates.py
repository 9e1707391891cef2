"""What the two tests of the crates share: the packed crates, and a user's project that has nothing
else."""

import shutil
import subprocess
import sys
import tarfile

from clean import ROOT, readme_program

sys.path.insert(0, str(ROOT / "packages" / "rust"))
import crates  # noqa: E402


def unfit_cargo():
    """Why there is no testing with this machine's cargo; None if there is."""
    if shutil.which("cargo") is None:
        return "there is no cargo"
    text = subprocess.run(["cargo", "--version"], capture_output=True, text=True).stdout
    found = tuple(int(n) for n in text.split()[1].split(".")[:2])
    # Older ones cannot pack a workspace whose crates need each other.
    return (
        None
        if found >= (1, 90)
        else f"cargo is {found[0]}.{found[1]}; 1.90 or later packs the crates"
    )


def unpacked(work):
    """The folder with the crates as they are published, and their files."""
    made = crates.make(work / "pack", work / "crates")
    folder = work / "unpacked"
    shutil.rmtree(folder, ignore_errors=True)
    for crate in made:
        with tarfile.open(crate) as archive:
            archive.extractall(folder, filter="data")
    return folder, made


def consumer(work, folder, features=()):
    """The README's program in a project of its own; the text that it prints where the page says
    so."""
    program, printed = readme_program(ROOT / "bindings" / "rust" / "README.md", "rust")
    project = work / ("consumer-" + "-".join(features or ["plain"]))
    shutil.rmtree(project, ignore_errors=True)
    (project / "src").mkdir(parents=True)
    (project / "src" / "main.rs").write_text(program)
    version = crates.project_version()
    listed = ", ".join(f'"{f}"' for f in features)
    (project / "Cargo.toml").write_text(
        '[package]\nname = "consumer"\nversion = "0.0.0"\nedition = "2021"\n\n'
        f'[dependencies]\nfastnorm = {{ version = "{version}", features = [{listed}] }}\n\n'
        "[patch.crates-io]\n"
        + "".join(
            f'{name} = {{ path = "{folder}/{name}-{version}" }}\n'
            for name in ("fastnorm", "fastnorm-sys")
        )
    )
    shutil.copyfile(ROOT / "bindings" / "rust" / "Cargo.lock", project / "Cargo.lock")
    return project, printed
