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
