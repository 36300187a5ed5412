#!/usr/bin/env python3
"""Writes the .npy and .npz files of this folder, as NumPy writes them. Run it in the folder to make them again.

Their contents: an array x[i, j] = 10 * i + j of shape (2, 3), if the name does not say otherwise.
"""
import zipfile

import numpy as np

x = np.array([[0, 1, 2], [10, 11, 12]])


def with_version(path, array, version):
    with open(path, "wb") as file:
        np.lib.format.write_array(file, array, version=version)


for version in (1, 2, 3):
    with_version(f"float32_v{version}.npy", x.astype("<f4"), (version, 0))
np.save("float64_fortran.npy", np.asfortranarray(x.astype("<f8")))
np.save("float16.npy", x.astype("<f2"))
np.save("float32_big_endian.npy", x.astype(">f4"))
np.save("int64_big_endian_fortran.npy", np.asfortranarray(x.astype(">i8")))
np.save("uint8.npy", x.astype("u1"))
np.save("bool.npy", x % 2 == 0)
np.save("scalar.npy", np.float32(2.5))
np.save("empty.npy", np.zeros((0, 3), "<f4"))
np.save("rank5.npy", np.arange(2, dtype="<i4").reshape(1, 1, 2, 1, 1))
np.save("object.npy", np.array([{}, None], dtype=object), allow_pickle=True)
np.save("record.npy", np.zeros(2, dtype=[("q", "<f4"), ("k", "<f4")]))
np.save("text.npy", np.array(["bad", "not"]))
np.save("complex.npy", np.zeros(2, np.complex64))
np.savez("stored.npz", q=x.astype("<f4"), keep_mask=x > 1)
np.savez_compressed("deflated.npz", q=np.tile(x.astype("<f4"), (8, 8)))
with zipfile.ZipFile("twice.npz", "w") as archive:
    for name in ("q.npy", "q"):
        archive.write("uint8.npy", name)
with open("python2.npy", "wb") as file:  # what NumPy 1.6 wrote under Python 2: long integers, padded to 16
    header = b"{'descr': '<i2', 'fortran_order': False, 'shape': (2L, 3L), }"
    header += b" " * (15 - (len(header) + 10) % 16) + b"\n"
    file.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + x.astype("<i2").tobytes())
