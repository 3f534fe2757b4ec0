//! Running programs as users of the root that they are in.

use std::ffi::OsString;
use std::fs;
use std::io;

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};

/// The files with users and groups (passwd(5), group(5)).
const USERS: &str = "/etc/passwd";
const GROUPS: &str = "/etc/group";

/// A user, as found.
#[derive(Clone, Debug, PartialEq, Eq)]
struct User {
    id: u32,
    group: u32,
    /// Groups besides that one.
    groups: Vec<u32>,
    home: Option<OsString>,
}

/// Becomes the user `USER[:GROUP[,GROUP]...]`, by names or numbers; nothing is changed if that is empty. Returns the user's home,
/// if it has one. This process must have one thread.
///
/// # Errors
/// When there is no such user or group, or the kernel refuses it.
pub(crate) fn become_user(user: &str) -> io::Result<Option<OsString>> {
    if user.is_empty() {
        return Ok(None);
    }
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let found = find(user, &read(USERS), &read(GROUPS))?;
    let groups: Vec<_> = found.groups.iter().copied().map(Gid::from_raw).collect();
    set_thread_groups(&groups)?;
    set_thread_gid(Gid::from_raw(found.group))?;
    set_thread_uid(Uid::from_raw(found.id))?;
    Ok(found.home)
}

/// Finds a user in these files. One that has a number needs not to be there.
fn find(text: &str, users: &str, groups: &str) -> io::Result<User> {
    let (name, group) = match text.split_once(':') {
        Some((name, group)) => (name, Some(group)),
        None => (text, None),
    };
    let entry = entries(users).find(|fields| is_named(fields, name));
    let number = |field: Option<&&str>| field.and_then(|field| field.parse().ok());
    let id = match &entry {
        Some(fields) => number(fields.get(2)),
        None => name.parse().ok(),
    };
    let id = id.ok_or_else(|| missing("there is no such user"))?;
    let own = entry.as_ref().and_then(|fields| number(fields.get(3)));
    let login = entry.as_ref().and_then(|fields| fields.first().copied());
    let (group, others) = match group {
        Some(given) => {
            let (group, others) = given.split_once(',').unwrap_or((given, ""));
            let others = others.split(',').filter(|other| !other.is_empty());
            let others = others.map(|other| group_of(other, groups));
            (group_of(group, groups)?, others.collect::<Result<_, _>>()?)
        }
        None => (own.unwrap_or(0), groups_of(login, groups)),
    };
    let home = entry.as_ref().and_then(|fields| fields.get(5));
    Ok(User {
        id,
        group,
        groups: others,
        home: home.map(OsString::from),
    })
}

/// The fields of each line.
fn entries(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().map(|line| line.split(':').collect())
}

/// Whether an entry is of that name, or number.
fn is_named(fields: &[&str], name: &str) -> bool {
    fields.first() == Some(&name) || fields.get(2) == Some(&name)
}

fn group_of(name: &str, groups: &str) -> io::Result<u32> {
    let entry = entries(groups).find(|fields| is_named(fields, name));
    let number = match &entry {
        Some(fields) => fields.get(2).and_then(|field| field.parse().ok()),
        None => name.parse().ok(),
    };
    number.ok_or_else(|| missing("there is no such group"))
}

/// The groups that a user is a member of.
fn groups_of(login: Option<&str>, groups: &str) -> Vec<u32> {
    let has = |fields: &Vec<&str>| {
        let members = fields.get(3).into_iter().flat_map(|all| all.split(','));
        login.is_some_and(|login| members.into_iter().any(|member| member == login))
    };
    let of_each = entries(groups).filter(has);
    of_each
        .filter_map(|fields| fields.get(2)?.parse().ok())
        .collect()
}

fn missing(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: &str = "root:x:0:0:root:/root:/bin/bash\nweb:x:33:34::/var/www:/bin/sh\nshort:x\n";
    const GROUPS: &str = "root:x:0:\nweb:x:34:\nlogs:x:4:other,web\nall:x:9:web\n";

    fn found(text: &str) -> Option<(u32, u32, Vec<u32>)> {
        let user = find(text, USERS, GROUPS).ok()?;
        Some((user.id, user.group, user.groups))
    }

    #[test]
    fn users_have_names_or_numbers() {
        for web in ["web", "33"] {
            assert_eq!(found(web), Some((33, 34, vec![4, 9])), "{web}");
        }
        assert_eq!(found("web:logs"), Some((33, 4, vec![])));
        assert_eq!(found("web:77"), Some((33, 77, vec![])));
        assert_eq!(found("1000"), Some((1000, 0, vec![])));
        assert_eq!(found("1000:1000"), Some((1000, 1000, vec![])));
        assert_eq!(found("web:77,logs,5"), Some((33, 77, vec![4, 5])));
        let home = find("web", USERS, GROUPS).unwrap().home;
        assert_eq!(home, Some("/var/www".into()));
        for none in [
            "nobody",
            "",
            "-1",
            "web:none",
            "web:4,none",
            "short",
            "4294967296",
        ] {
            assert_eq!(found(none), None, "{none}");
        }
    }
}
