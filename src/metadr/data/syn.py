"""SYN: synthetic numbers rendered from fonts, 32x32 RGB, .mat files in SVHN's format."""

from dataclasses import replace

from metadr.data.mat import count_mat, read_mat
from metadr.data.remote import RemoteFile
from metadr.data.source import Counts, Need, Source
from metadr.synthetic.syn_digits import COUNTS, SETS, Variant

# A public copy in Git's storage of large files, which names every file by its SHA-256 and states the licence.
MIRROR = (
    "https://media.githubusercontent.com/media/domainadaptation/datasets/91ff02225a73db330883843bc41ee3aca59a19d9/synth"
)

SYN = Source(
    name="syn",
    title="SYN (Synthetic Numbers)",
    about="numbers of one to three digits rendered from fonts, labelled by the centre digit, 32x32 RGB",
    licence="CC BY 4.0",
    homepage="http://yaroslav.ganin.net/",
    files=(
        RemoteFile(
            "synth_train_32x32.mat",
            (f"{MIRROR}/synth_train_32x32.mat",),
            "sha256:e0e0924ecd0c0b5a55ed6485aaa7d39937af982397717b89a3d91777aca9433c",
            895_578_032,
        ),
        RemoteFile(
            "synth_test_32x32.mat",
            (f"{MIRROR}/synth_test_32x32.mat",),
            "sha256:6285fe9a1c6f27b379a47263907a37899b59ce86948fd343a5b904435cde5bcc",
            17_851_156,
        ),
    ),
    needs=(Need("train", ("synth_train_32x32.mat",)), Need("test", ("synth_test_32x32.mat",))),
    expected=Counts(479_400, 9_553),
    count=count_mat,
    read=read_mat,
    build="metadr data build syn",
)


def _made_here(variant: Variant) -> Source:
    """A variant that nobody published: it is only rendered here."""
    return replace(
        SYN,
        name=SETS[variant],
        title=f"SYN, {variant} to read",
        about=f"synthetic numbers rendered here to be {variant} to read, 32x32 RGB",
        files=(),
        expected=Counts(**COUNTS),
        build=f"{SYN.build} --variant {variant}",
    )


RENDERED: dict[str, Source] = {source.name: source for source in (_made_here("easy"), _made_here("hard"))}
