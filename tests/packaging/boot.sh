#!/bin/bash
# boot.sh FOLDER GROUP NAME [SHOWN PLACE]…: systemd as process 1 of a machine of its own, over this one's files, of which nothing is changed: what
# is written goes to FOLDER (a tmpfs that is gone with it), control groups below GROUP, and it has no network but loopback. Each folder SHOWN is
# there at PLACE to read, whatever file system it is on and whoever may go there here.
# Where it reboots, or its unshare is killed (the power fails), it is started again: with its disk, a boot id and a boot clock of its own, and nothing else.
set -e
exec unshare --mount --propagation private /bin/bash -e -s "$@" <<'OUTSIDE'
folder=$1 group=$2
mount -t tmpfs tmpfs "$folder"
mkdir "$folder/upper" "$folder/work" "$folder/root"
tr -d - </proc/sys/kernel/random/uuid >"$folder/machine-id"
inside=$(cat <<'INSIDE'
folder=$1 root=$1/root name=$2
shift 2
mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" "$root"
mount -t proc proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys" # the kernel is everybody's
cat "$root/proc/sys/kernel/random/uuid" >"$folder/boot-id"
mount --bind "$folder/boot-id" "$root/proc/sys/kernel/random/boot_id"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
while read -r node minor; do mknod -m 666 "$root/dev/$node" c 1 "$minor"; done <<<$'null 3\nzero 5\nfull 7\nrandom 8\nurandom 9'
mknod -m 666 "$root/dev/tty" c 5 0
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
while [ $# -gt 0 ]; do
    mkdir -p "$root$2"
    mount --bind "$1" "$root$2"
    mount -o remount,bind,ro "$root$2"
    shift 2
done
ip link set lo up
echo "$name" >"$root/etc/hostname"
units=$root/etc/systemd/system
enabled=$units/multi-user.target.wants
[ -e "$folder/booted" ] || rm -rf "$enabled" # this machine's
touch "$folder/booted"
mkdir -p "$enabled"
printf '[Unit]\nRequires=basic.target\nAfter=basic.target\nAllowIsolate=yes\nWants=%s\n' "$(ls -x -w 0 "$enabled")" >"$units/trial.target"
for masked in systemd-udevd.service systemd-firstboot.service systemd-networkd.service systemd-resolved.service \
    dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount sys-fs-fuse-connections.mount; do
    ln -sf /dev/null "$units/$masked"
done
cp "$folder/machine-id" "$root/etc/machine-id"
: >"$root/etc/fstab"
mkdir -p "$root/before"
cd "$root"
pivot_root . before
umount -l /before
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb \
    /lib/systemd/systemd --system --unit=trial.target --show-status=0 systemd.unified_cgroup_hierarchy=1 </dev/null
INSIDE
)
for ((boot = 1, ended = 129; ended == 129 || ended == 137; boot++)); do # by SIGHUP, which is a reboot, or by SIGKILL
    mkdir "$group/$boot"
    ended=0
    read -r now _ </proc/uptime
    setpriv --pdeathsig KILL /bin/bash -e -c 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"' - "$group/$boot" \
        unshare --pid --fork --kill-child --mount --cgroup --uts --net --ipc --time --boottime "-${now%.*}" --propagation private \
        /bin/bash -e -c "$inside" - "$folder" "${@:3}" || ended=$?
    while grep -q "populated 1" "$group/$boot/cgroup.events"; do sleep 0.02; done
done
OUTSIDE
