# Names: what programs say of them, also when they fail.
cd /tmp/served || exit 1
export LC_ALL=C
pwd
mkdir -p a/b/c && mkdir a 2>&1
echo one > a/one; echo two > a/b/two
ln -s b/two a/link; ln a/one a/hard; ln -s /tmp/served/a absolute; ln -s nowhere dangling
cat a/link absolute/b/two; cat dangling 2>&1
readlink a/link absolute
mv a/one a/b/moved; ls -1 a a/b
mv a a/b 2>&1; rmdir a 2>&1; rm a/b 2>&1; cat a 2>&1
touch -d '2001-02-03 04:05:06' a/hard; stat -c '%n %a %h %s %F %y' a/hard a/b/moved
chmod 4711 a/hard; stat -c '%a' a/hard; umask 027; touch masked; mkdir maskdir; stat -c '%n %a' masked maskdir
find . -printf '%p %y\n' | sort
(cd a/b && cd .. && pwd && ls ../a/b)
cd /; ls /tmp/served/a/../masked; ls /tmp/served/../served | sort | head -3
test -x /tmp/served/masked || echo not executable
rm -r /tmp/served/a; ls -A /tmp/served | sort
