//! Making, listing and revoking tokens.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::auth::{Patterns, Permission, Permissions};

fn now() -> Timestamp {
    "2026-01-02T03:04:05.678Z".parse().unwrap()
}

fn new(name: &str) -> NewToken {
    NewToken {
        name: Some(name.to_owned()),
        tenant: "shop".to_owned(),
        queues: Patterns::new(["orders.*".parse().unwrap()]).unwrap(),
        can: [Permission::Send, Permission::Work].into_iter().collect(),
        expires_at: None,
    }
}

#[test]
fn a_token_is_listed_without_its_secret_and_revoked_by_name_or_id() {
    let directory = tempfile::tempdir().unwrap();
    let file = TokenFile::in_directory(&directory.path().join("not/yet/there"));
    assert!(file.list().unwrap().is_empty());
    assert!(matches!(file.revoke("one"), Err(Error::NoSuchToken(_))));

    let one = file.create(new("one"), now()).unwrap();
    let two = file.create(NewToken { name: None, ..new("") }, now()).unwrap();
    let listed = file.list().unwrap();
    assert_eq!(listed, [one.listed.clone(), two.listed.clone()]);

    let (_, secret) = one.token.rsplit_once('_').unwrap();
    let shown = format!("{listed:?} {one:?} {}", serde_json::to_string(&listed).unwrap());
    assert!(!shown.contains(secret));
    assert!(!fs::read_to_string(file.path()).unwrap().contains(secret));

    assert_eq!(file.revoke(&two.listed.id).unwrap(), two.listed);
    assert_eq!(file.revoke("one").unwrap(), one.listed);
    assert!(matches!(file.revoke("one"), Err(Error::NoSuchToken(_))));
    assert!(file.list().unwrap().is_empty());
}

#[test]
fn the_file_is_its_owners_alone_and_nothing_is_left_beside_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = TokenFile::in_directory(directory.path());
    // What a killed writer left, readable by everybody.
    let leftover = directory.path().join("tokens.json.new");
    fs::write(&leftover, "half").unwrap();
    file.create(new("one"), now()).unwrap();
    assert_eq!(fs::metadata(file.path()).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!leftover.exists());
}

#[test]
fn what_cannot_be_a_token_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = TokenFile::in_directory(directory.path());
    file.create(new("taken"), now()).unwrap();
    let refused = |new: NewToken| file.create(new, now()).unwrap_err();
    assert!(matches!(refused(new("taken")), Error::NameTaken(_)));
    let long = "n".repeat(81);
    for name in ["", " a", "a\n", long.as_str()] {
        assert!(matches!(refused(new(name)), Error::InvalidName), "{name:?}");
    }
    for tenant in ["", "a b", "ü"] {
        let error = refused(NewToken { tenant: tenant.into(), ..new("x") });
        assert!(matches!(error, Error::InvalidTenant(_)), "{error}");
    }
    let error = refused(NewToken { can: Permissions::NONE, ..new("x") });
    assert!(matches!(error, Error::NoPermission));
    let error = refused(NewToken { expires_at: Some(now()), ..new("x") });
    assert!(matches!(error, Error::ExpiredAlready(_)));
    assert_eq!(file.list().unwrap().len(), 1);
}

/// Each writer makes its own tokens; without the lock, one would overwrite the other's.
#[test]
fn two_writers_at_once_lose_nothing() {
    const EACH: usize = 20;
    let directory = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let file = TokenFile::in_directory(directory.path());
            scope.spawn(move || {
                for number in 0..EACH {
                    file.create(new(&format!("{writer}-{number}")), now()).unwrap();
                }
            });
        }
    });
    let listed = TokenFile::in_directory(directory.path()).list().unwrap();
    assert_eq!(listed.len(), 4 * EACH);
}

#[test]
fn a_file_that_is_not_ours_is_refused_untouched() {
    let directory = tempfile::tempdir().unwrap();
    let file = TokenFile::in_directory(directory.path());
    file.create(new("one"), now()).unwrap();
    let good = fs::read_to_string(file.path()).unwrap();
    let entry = good[good.find('{').unwrap() + 1..].to_owned();
    let entry = &entry[entry.find('{').unwrap()..=entry.find('}').unwrap()];
    for (text, is_newer) in [
        (good.replace("\"format\": 1", "\"format\": 2"), true),
        (good.replace("\"format\": 1", "\"format\": \"1\""), false),
        (good.replace("\"tenant\"", "\"tennant\""), false),
        (good.replace("orders.*", "orders/*"), false),
        (good.replace("\"shop\"", "\"the shop\""), false),
        (good.replace("\"send\"", "\"everything\""), false),
        (good.replace("2026-01", "2026-13"), false),
        (good.replace(entry, &format!("{entry},{entry}")), false),
    ] {
        assert_ne!(text, good);
        fs::write(file.path(), &text).unwrap();
        for error in [
            file.list().unwrap_err(),
            file.create(new("two"), now()).unwrap_err(),
            file.revoke("one").unwrap_err(),
        ] {
            let is_refused = match error {
                Error::Newer { format, .. } => is_newer && format == 2,
                Error::Damaged { .. } => !is_newer,
                _ => false,
            };
            assert!(is_refused, "{error}");
        }
        assert_eq!(fs::read_to_string(file.path()).unwrap(), text);
    }
}
