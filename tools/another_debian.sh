#!/usr/bin/env bash
# HEAD's wheels on the Python of another Debian, such as 3.14 of forky; nothing else of this machine is used. As root, with
# debootstrap; 7 GB, of which a cache of pip; FOLDER stays, and is used again:
#     bash tools/another_debian.sh FOLDER [SUITE]
# Builds the three wheels, installs them, then runs a project of each form of `pomona new`, its tests and a rehearsal of its
# federation, apps of Flower, and the demo.
set -euo pipefail
root=$1 suite=${2:-forky}
packages=ca-certificates,g++,python3-dev,python3-venv
if [ ! -x "$root/usr/bin/python3" ]; then # the script is that of sid, since debootstrap may be older than the suite
  debootstrap --variant=minbase --include=$packages "$suite" "$root" "${MIRROR:-http://deb.debian.org/debian}" /usr/share/debootstrap/scripts/sid
fi
cp /etc/resolv.conf /etc/hosts "$root/etc/" # the network's, and its certificates
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
[ -s "$root/etc/machine-id" ] || tr -d - < /proc/sys/kernel/random/uuid > "$root/etc/machine-id" # a silo asks for it
rm -rf "$root/srv/pomona"
mkdir -p "$root/srv/pomona/source"
git -C "$(dirname "$0")/.." archive HEAD | tar x -C "$root/srv/pomona/source"
cat > "$root/srv/pomona/try.sh" << 'END'
set -euxo pipefail
cd /srv/pomona
export HOME=/root OMP_NUM_THREADS=1 PIP_DISABLE_PIP_VERSION_CHECK=1
python3 --version
python3 -m venv build
build/bin/pip wheel --quiet --no-deps --wheel-dir wheels ./source ./source/federation ./source/native
python3 -m venv env
env/bin/pip install --quiet --no-deps wheels/*.whl
env/bin/pip install --quiet -c source/constraints.txt pomona-federation pomona-native pytest nibabel scikit-learn ray
env/bin/pip check
PATH=/srv/pomona/env/bin:$PATH
for form in table images volumes; do
  pomona new $form --from $form
  (cd $form && pomona run run.toml --no-report && pytest -q && pomona deploy rehearse federation.toml rounds=2)
done
pomona new script --from pytorch
(cd script && python train.py && pytest -q)
pomona new app --from flower
(cd app && python -c "import client_app, server_app")
# apps of Flower: on its grid in this process, then over a SuperLink with two SuperNodes
mkdir -p copy/federation/tests
cp -r source/examples copy
cp source/federation/tests/test_plain_flower_app.py copy/federation/tests
pytest -q -c /dev/null --rootdir copy copy/federation/tests/test_plain_flower_app.py
pomona demo
END
# mounts of their own, which end with the process
root=$root exec unshare --mount bash -c 'mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" &&
  exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt chroot "$root" bash /srv/pomona/try.sh'
