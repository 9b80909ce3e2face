"""SVHN, cropped digits: house numbers from street photographs, 32x32 RGB, .mat files."""

from metadr.data.mat import count_mat, read_mat
from metadr.data.remote import RemoteFile
from metadr.data.source import Counts, Need, Source

ADDRESS = "http://ufldl.stanford.edu/housenumbers/"

SVHN = Source(
    name="svhn",
    title="SVHN (Street View House Numbers), cropped digits",
    about="house numbers from street photographs, cropped around one digit, 32x32 RGB",
    licence="for non-commercial use only",
    homepage=ADDRESS,
    files=(
        RemoteFile(
            "train_32x32.mat", (f"{ADDRESS}train_32x32.mat",), "md5:e26dedcc434d2e4c54c9b2d4a06d8373", 182_040_794
        ),
        RemoteFile("test_32x32.mat", (f"{ADDRESS}test_32x32.mat",), "md5:eb5a983be6a315427106f1b164d9cef3", 64_275_384),
    ),
    needs=(Need("train", ("train_32x32.mat",)), Need("test", ("test_32x32.mat",))),
    expected=Counts(73_257, 26_032),
    count=count_mat,
    read=read_mat,
    train_classes=(4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659),
    test_classes=(1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595),
)
