#!/bin/sh
# A C compiler and Python's headers, for the Dockerfile: runs as root while it builds.
#
# torch.compile makes its kernels by Triton, which builds a small module in C on the machine where it runs: with CC, else
# gcc, and with Python.h (github.com/triton-lang/triton, python/triton/runtime/build.py). On Debian 12, the default base
# image, both packages are pinned to the versions of its stable release; their security updates are taken. A base image
# that has its own compiler keeps that, one of another distribution gets what that has.
set -eu
include=$(python -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
gcc=gcc libc=libc6-dev headers=
if [ "$(. "${DESTDIR:-}/etc/os-release" && echo "$ID $VERSION_ID")" = "debian 12" ]; then
    gcc='gcc=4:12.2.0-*' libc='libc6-dev=2.36-*'
fi
[ -f "$include/Python.h" ] || headers=python3-dev
if command -v gcc >/dev/null; then
    gcc='' libc=''
fi

# shellcheck disable=SC2086 # none, one or two words
set -- $gcc $libc $headers
if [ $# -gt 0 ]; then
    if ! command -v apt-get >/dev/null; then
        echo "compiler: the base image has neither a C compiler with Python.h nor apt-get; training goes without torch.compile" >&2
        exit 0
    fi
    apt-get update
    apt-get install --yes --no-install-recommends "$@"
    rm -rf "${DESTDIR:-}/var/lib/apt/lists"
fi

# What Triton does, at its smallest: better no image than one whose first step fails.
echo '#include <Python.h>' | gcc -I"$include" -fsyntax-only -x c -
