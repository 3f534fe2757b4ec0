# What the documentation's examples take for granted: installed kernels, folders, files and programs.
set -eu
/usr/sbin/testbed-init modules
for kernel in /boot/vmlinuz-*; do
	ln -sf /payload/node.cpio "/boot/initrd.img-${kernel#/boot/vmlinuz-}"
done
mkdir /srv/web
cp /boot/vmlinuz-6.12.* bzImage
cp bzImage vmlinux
cp /payload/node.cpio initrd.img
cp /bin/echo a.out
mkdir site
echo "a page" > site/page
mount --bind / /srv/web

# A small root, and programs of it that go on.
debian=/srv/debian
mkdir -p $debian/bin $debian/usr/sbin $debian/usr/bin $debian/etc $debian/dev $debian/proc $debian/sys $debian/run $debian/tmp
cp /bin/busybox $debian/bin/
for name in sh ls cat sleep; do
	ln -s busybox $debian/bin/$name
done
for program in sbin/nginx bin/postgres bin/first bin/second; do
	printf '#!/bin/sh\nexec sleep 100000\n' > $debian/usr/$program
	chmod 755 $debian/usr/$program
done
mkdir -p /srv/shop /etc/ssl/private

# The project of the documentation: its kernels say that they are ready.
mkdir -p ready/bin ready/dev
cp /bin/busybox ready/bin/
printf '#!/bin/busybox sh\nbusybox mount -t devtmpfs none /dev\n
echo ready for connections > /dev/kmsg\nexec busybox sleep 100000\n' > ready/init
chmod 755 ready/init
(cd ready && find . | busybox cpio -o -H newc > ../ready.cpio)
