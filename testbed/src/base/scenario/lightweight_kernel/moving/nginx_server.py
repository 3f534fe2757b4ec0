# An nginx with one worker, which serves the script's folder.
import signal
from common import *

PORT = 8089
CONFIG = f"""
daemon off;
worker_processes 1;
pid {os.getcwd()}/pid;
error_log {os.getcwd()}/errors;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {os.getcwd()}/body;
    keepalive_requests 100000;
    server {{
        listen 127.0.0.1:{PORT};
        root {os.getcwd()};
    }}
}}
user root;
"""
open("config", "w").write(CONFIG)


def start():
    """Starts it; returns its master."""
    return subprocess.Popen(["/usr/sbin/nginx", "-c", f"{os.getcwd()}/config"])


def children(master):
    """Its workers."""
    return open(f"/proc/{master.pid}/task/{master.pid}/children").read().split()


def end(master):
    """Has it end when it has served all, and sees that it had no trouble."""
    master.send_signal(signal.SIGQUIT)
    assert_ends(master, 0)
    errors = open("errors").read()
    assert "alert" not in errors and "emerg" not in errors, errors
