# Programs that nobody here wrote.
cd /tmp/served || exit 1
export LC_ALL=C
source=$(echo /usr/lib/python3*/email)
cp -r "$source" copy && diff -r copy "$source" && echo alike
tar cf copy.tar copy && tar tf copy.tar | sort | sha256sum
mkdir unpacked && tar xf copy.tar -C unpacked && diff -r copy unpacked/copy && echo unpacked
gzip -9 copy.tar && gzip -t copy.tar.gz && echo compressed
find copy -type f | sort | xargs grep -il unicode | head -5
python3 -c 'import zipfile; zipfile.main(["-c", "copy.zip", "copy"]); print(sorted(zipfile.ZipFile("copy.zip").namelist())[:3])'
perl -ne 'print if $. < 4' copy/utils.py; perl -pi -e 's/Copyright/Copied/' copy/utils.py; grep -c Copied copy/utils.py
mkdir mail && printf 'set %s\n' 'location /tmp/served/mail' 'number 50' 'transactions 200' 'seed 7' > mark && printf 'run\nquit\n' >> mark
postmark mark | grep -E 'created|read|appended|deleted|transactions' | grep -v seconds | sed 's/ (.*//' && rmdir mail && echo marked
bonnie++ -q -d /tmp/served -s 12M -r 6M -n 1:2000:10 -f -u root > bonnie 2> /dev/null; echo "bonnie $?, lines: $(wc -l < bonnie)"; rm bonnie; ls
