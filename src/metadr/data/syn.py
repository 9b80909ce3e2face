"""SYN: synthetic numbers rendered from fonts, 32x32 RGB, .mat files in SVHN's format."""

from metadr.data.mat import count_mat, read_mat
from metadr.data.remote import RemoteFile
from metadr.data.source import Counts, Need, Source

SYN = Source(
    name="syn",
    title="SYN (Synthetic Numbers)",
    about="numbers of one to three digits rendered from fonts, labelled by the centre digit, 32x32 RGB",
    licence="none stated",
    homepage="http://yaroslav.ganin.net/",
    files=(
        RemoteFile(
            "SynthDigits.zip",
            ("https://drive.google.com/uc?export=download&id=0B9Z4d7lAwbnTSVR1dEFSRUFxOUU&confirm=t",),
            None,
        ),
    ),
    needs=(Need("train", ("synth_train_32x32.mat",)), Need("test", ("synth_test_32x32.mat",))),
    expected=Counts(479_400, 9_553),
    count=count_mat,
    read=read_mat,
    build="metadr data build syn",
)
