#!/bin/sh
# EFA's software and the plugin by which NCCL uses it (aws-ofi-nccl), for the Dockerfile: runs as root while it builds.
#
# EFA_VERSION is AWS's installer, which holds both, from EFA_URL (a mirror serves too: the signature is checked). EFA_SIGNER
# is the fingerprint of AWS's key (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start-nccl.html). DESTDIR is
# the root of the file system, for tests.
set -eu
root=${DESTDIR:-}

if [ -x "$root/opt/amazon/efa/bin/fi_info" ]; then
    echo "EFA: the base image brings its own"
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "EFA: the base image has neither EFA's software nor apt-get; the image goes without, and NCCL uses TCP" >&2
    exit 0
fi

apt-get update
apt-get install --yes --no-install-recommends ca-certificates curl gnupg

work=$(mktemp -d)
archive=aws-efa-installer-$EFA_VERSION.tar.gz
for file in "$archive" "$archive.sig" aws-efa-installer.key; do
    curl --fail --location --silent --show-error --retry 3 --output "$work/$file" "$EFA_URL/$file"
done

# gpgv is given AWS's key alone, whatever else the downloaded file of keys holds.
GNUPGHOME=$work/gnupg
export GNUPGHOME
mkdir -m 700 "$GNUPGHOME"
gpg --batch --quiet --import "$work/aws-efa-installer.key"
gpg --batch --export "$EFA_SIGNER" >"$work/key.gpg"
gpgv --keyring "$work/key.gpg" "$work/$archive.sig" "$work/$archive"

# The flags for containers (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-installer-containers.html): the
# kernel module and the limits are the machine's. One MPI is enough, as training uses none.
tar -xf "$work/$archive" -C "$work"
(cd "$work/aws-efa-installer" && ./efa_installer.sh -y --skip-kmod --skip-limit-conf --no-verify --mpi=openmpi5)
rm -rf "$work" "$root/var/lib/apt/lists"

# NCCL asks the linker for libnccl-net.so. Without it, it would use TCP and say so in no line: better no image.
plugin=$(find "$root/opt/amazon" -name 'libnccl-net*.so' | sort | tail -n 1)
if [ -z "$plugin" ]; then
    echo "EFA: installer $EFA_VERSION brought no libnccl-net*.so below /opt/amazon; expected the plugin aws-ofi-nccl" >&2
    exit 1
fi
directory=$(dirname "$plugin")
[ -e "$directory/libnccl-net.so" ] || ln -s "$(basename "$plugin")" "$directory/libnccl-net.so"
echo "${directory#"$root"}" >"$root/etc/ld.so.conf.d/200-aws-ofi-nccl.conf"
ldconfig
"$root/opt/amazon/efa/bin/fi_info" --version
