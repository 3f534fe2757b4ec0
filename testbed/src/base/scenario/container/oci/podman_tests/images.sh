# Makes what podman's tests expect of a registry, from busybox: images.sh FOLDER REGISTRY IMAGE NONLOCAL_IMAGE. The first
# image stays in podman's storage, the second is only in the registry.
set -eu
folder=$1 registry=$2 image=$3 nonlocal=$4
root=$folder/root
mkdir -p "$root"
(cd "$root" && mkdir -p bin dev etc home/podman lib media mnt opt proc root run sbin srv sys tmp usr/bin usr/lib usr/local/bin \
	usr/sbin usr/share var/cache var/lib var/log var/tmp)
chmod 1777 "$root"/tmp "$root"/var/tmp
cp /bin/busybox "$root"/bin/busybox
for applet in $(busybox --list-full); do
	[ -e "$root/$applet" ] || ln -s /bin/busybox "$root/$applet"
done
ln -s busybox "$root"/bin/busybox-extras
ln -s /proc/mounts "$root"/etc/mtab
# An applet that Debian's has not.
cat > "$root"/bin/printenv <<'EOF'
#!/bin/sh
[ $# -gt 0 ] || exec env
eval "echo \"\$$1\""
EOF
chmod 755 "$root"/bin/printenv
cat > "$root"/etc/passwd <<'EOF'
root:x:0:0:root:/root:/bin/sh
bin:x:1:1:bin:/bin:/sbin/nologin
daemon:x:2:2:daemon:/sbin:/sbin/nologin
nobody:x:65534:65534:nobody:/:/sbin/nologin
EOF
echo NAME=testimage > "$root"/etc/os-release
cat > "$root"/etc/group <<'EOF'
root:x:0:root
bin:x:1:root,bin,daemon
daemon:x:2:root,bin,daemon
ping:x:999:
nobody:x:65534:
EOF
echo 20220615 > "$root"/home/podman/testimage-id
touch --date=@1600000000 "$root"/home/podman/testimage-id
cat > "$root"/home/podman/pause <<'EOF'
#!/bin/sh
echo Confirmed: testimage pause invoked as $0
while :; do
    sleep 0.1
done
EOF
chmod 755 "$root"/home/podman/pause
chmod 555 "$root"
tar -C "$root" -cf "$folder"/root.tar .
# What is pushed goes to the registry that is named; what is pulled comes from there, too, by podman's configuration.
for name in "$nonlocal" "$image"; do
	podman import --change 'WORKDIR /home/podman' --change 'LABEL created_by=test/system/build-testimage' \
		--change 'LABEL created_at=2022-06-15T00:00:00Z' --change "LABEL name=$name" \
		--change 'CMD ["/bin/echo", "This container is intended for podman CI testing"]' "$folder"/root.tar "$name"
	podman push --tls-verify=false "$name" "docker://$registry/${name#*/}"
done
podman rmi --all --force
# So it has the registry's digests.
podman pull "$image"
rm -r "$root" "$folder"/root.tar
