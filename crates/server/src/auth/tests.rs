//! Who may do what, cell by cell.

use std::collections::BTreeSet;

use super::*;

fn now() -> Timestamp {
    "2026-01-02T03:04:05Z".parse().unwrap()
}

/// What the table says, written down a second time and in another way: the sets of permissions
/// of which all of one must be there.
fn needed(action: Action) -> &'static [&'static [Permission]] {
    match action {
        Action::Send => &[&[Permission::Send]],
        Action::Work => &[&[Permission::Work]],
        Action::Claim => &[&[Permission::Send, Permission::Work]],
        Action::Look => &[&[Permission::Send], &[Permission::Work], &[Permission::Admin]],
        Action::Browse => &[&[Permission::Work], &[Permission::Admin]],
        Action::Create | Action::Admin => &[&[Permission::Admin]],
        Action::Operate => &[&[Permission::Operate]],
    }
}

fn expected(action: Action, can: &BTreeSet<&str>, matches: bool) -> Result<(), Denied> {
    let has = |set: &&[Permission]| set.iter().all(|permission| can.contains(permission.as_str()));
    match (needed(action).iter().any(has), matches || action == Action::Operate) {
        (true, true) => Ok(()),
        (false, true) => Err(Denied::Forbidden),
        (_, false) if action == Action::Create => Err(Denied::Forbidden),
        (_, false) => Err(Denied::Invisible),
    }
}

/// Every action × every set of permissions × matching or not × tenant, each with a real token
/// that was made, written, read and authenticated.
#[test]
fn only_the_allowed_cells_succeed() {
    let directory = tempfile::tempdir().unwrap();
    let file = TokenFile::in_directory(directory.path());
    let sets: Vec<Permissions> = (1..16)
        .map(|bits| {
            let is_in = |permission: &Permission| bits >> (*permission as u8) & 1 == 1;
            Permission::ALL.into_iter().filter(is_in).collect()
        })
        .collect();
    let mut made = Vec::new();
    for tenant in ["shop", "bank"] {
        for pattern in ["orders.*", "emails", "*"] {
            for &can in &sets {
                let queues = Patterns::new([pattern.parse().unwrap()]).unwrap();
                let new =
                    NewToken { name: None, tenant: tenant.into(), queues, can, expires_at: None };
                made.push((tenant, pattern, can, file.create(new, now()).unwrap().token));
            }
        }
    }
    let auth = Auth::Tokens(Arc::new(Tokens::open(directory.path()).unwrap()));
    let mut cells = (0, 0);
    for (tenant, pattern, can, token) in made {
        let header = format!("Bearer {token}");
        let principal = auth.authenticate(Some(header.as_bytes()), now()).unwrap();
        assert_eq!(&**principal.tenant(), tenant, "a token reaches its own tenant alone");
        let names: BTreeSet<&str> = can.iter().map(Permission::as_str).collect();
        for (queue, matches) in [("orders.eu", pattern != "emails"), ("orders", pattern == "*")] {
            for action in Action::ALL {
                let expected = expected(action, &names, matches);
                let cell = format!("{tenant} {pattern} {can} {action:?} {queue}");
                assert_eq!(authorise(&principal, action, queue), expected, "{cell}");
                if expected.is_ok() { cells.0 += 1 } else { cells.1 += 1 }
            }
        }
    }
    assert_eq!(cells.0 + cells.1, 2 * 3 * 15 * 2 * 8);
    assert!(cells.0 > 100 && cells.1 > 100, "{cells:?}");
}

#[test]
fn what_may_not_be_seen_gets_the_answer_of_what_is_absent() {
    let principal = Principal {
        queues: Patterns::new(["orders.*".parse().unwrap()]).unwrap(),
        permissions: [Permission::Send].into_iter().collect(),
        ..Principal::everything("shop")
    };
    let problem =
        |action, queue| authorise(&principal, action, queue).unwrap_err().problem(action, queue);
    for action in [Action::Send, Action::Work, Action::Claim, Action::Look, Action::Admin] {
        assert_eq!(problem(action, "secret"), Problem::no_such_queue("secret"));
    }
    assert_eq!(problem(Action::Create, "secret").code, Code::Forbidden);
    let forbidden = problem(Action::Work, "orders.eu");
    assert_eq!(forbidden.code, Code::Forbidden);
    assert!(forbidden.detail.contains("work"), "{forbidden}");
    assert!(principal.sees("orders.eu") && !principal.sees("secret"));
}

#[test]
fn without_authentication_everything_is_allowed_in_the_default_tenant() {
    for header in [None, Some(b"Bearer nonsense".as_slice())] {
        let principal = Auth::off().authenticate(header, now()).unwrap();
        assert_eq!(&**principal.tenant(), DEFAULT_TENANT);
        for action in Action::ALL {
            assert_eq!(authorise(&principal, action, "anything"), Ok(()));
        }
        assert!(Auth::off().is_current(&principal, now()));
        assert!(principal.token_id().is_none());
    }
}

fn one_token(directory: &std::path::Path, expires_at: Option<&str>) -> Created {
    let new = NewToken {
        name: Some("billing".into()),
        tenant: "shop".into(),
        queues: Patterns::everything(),
        can: Permissions::ALL,
        expires_at: expires_at.map(|at| at.parse().unwrap()),
    };
    TokenFile::in_directory(directory).create(new, now()).unwrap()
}

#[test]
fn a_header_without_a_known_token_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let token = one_token(directory.path(), None).token;
    let auth = Auth::Tokens(Arc::new(Tokens::open(directory.path()).unwrap()));
    let ask = |value: &str| auth.authenticate(Some(value.as_bytes()), now()).map(|_| ());
    assert_eq!(ask(&format!("Bearer {token}")), Ok(()));
    assert_eq!(ask(&format!("  bearer   {token} ")), Ok(()));
    assert_eq!(auth.authenticate(None, now()), Err(Unauthorised::Missing));
    for value in ["", "Bearer", &token, &format!("Basic {token}")] {
        assert_eq!(ask(value), Err(Unauthorised::Malformed), "{value:?}");
    }
    assert_eq!(auth.authenticate(Some(b"\xff\xff"), now()), Err(Unauthorised::Malformed));
    let (start, secret) = token.rsplit_once('_').unwrap();
    let wrong: String = secret.chars().rev().collect();
    let stranger = format!("hapax_{}_{secret}", "0".repeat(12));
    for token in [format!("{start}_{wrong}"), stranger, "nonsense".into(), format!("{token}0")] {
        assert_eq!(ask(&format!("Bearer {token}")), Err(Unauthorised::Unknown), "{token}");
    }
}

/// The hash that unknown ids are compared with must be nobody's secret.
#[test]
fn no_secret_fits_an_unknown_id() {
    let directory = tempfile::tempdir().unwrap();
    let tokens = Tokens::open(directory.path()).unwrap();
    assert!(tokens.is_empty());
    let text = format!("hapax_{}_{}", "0".repeat(12), "0".repeat(64));
    assert_eq!(tokens.authenticate(&text, now()), None);
}

#[test]
fn an_expired_token_is_unknown() {
    let directory = tempfile::tempdir().unwrap();
    let token = one_token(directory.path(), Some("2026-02-01T00:00:00Z")).token;
    let tokens = Tokens::open(directory.path()).unwrap();
    let principal = tokens.authenticate(&token, now()).unwrap();
    assert!(tokens.is_current(&principal, now()));
    let late: Timestamp = "2026-02-01T00:00:00Z".parse().unwrap();
    assert_eq!(tokens.authenticate(&token, late), None);
    assert!(!tokens.is_current(&principal, late));
}

#[test]
fn a_running_broker_follows_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let tokens = Tokens::open(directory.path()).unwrap();
    assert!(!tokens.refresh(), "nothing changed");
    let created = one_token(directory.path(), None);
    assert_eq!(tokens.authenticate(&created.token, now()), None);
    assert!(tokens.refresh());
    let principal = tokens.authenticate(&created.token, now()).unwrap();
    assert_eq!(principal.token_id().unwrap().to_string(), created.listed.id);
    assert!(!tokens.refresh(), "nothing changed since");

    TokenFile::in_directory(directory.path()).revoke("billing").unwrap();
    assert!(tokens.refresh());
    assert_eq!(tokens.authenticate(&created.token, now()), None);
    assert!(!tokens.is_current(&principal, now()), "a stream of it is told");
}

#[tokio::test]
async fn the_follower_notices_a_new_token() {
    let directory = tempfile::tempdir().unwrap();
    let tokens = Arc::new(Tokens::open(directory.path()).unwrap());
    let follower = tokio::spawn(Arc::clone(&tokens).follow());
    let token = one_token(directory.path(), None).token;
    let found = async {
        while tokens.authenticate(&token, now()).is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), found).await.unwrap();
    follower.abort();
}

#[test]
fn a_bad_file_keeps_the_last_good_set_and_stops_a_start() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.json");
    let token = one_token(directory.path(), None).token;
    let good = std::fs::read(&path).unwrap();
    let tokens = Tokens::open(directory.path()).unwrap();
    let is_known = || tokens.authenticate(&token, now()).is_some();

    for bad in [&b""[..], b"{", b"[]", &good[..good.len() / 2]] {
        std::fs::write(&path, bad).unwrap();
        assert!(!tokens.refresh());
        assert!(is_known());
        let error = Tokens::open(directory.path()).unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }), "{error}");
    }
    std::fs::remove_file(&path).unwrap();
    assert!(!tokens.refresh());
    assert!(is_known(), "a lost file revokes nothing");

    std::fs::write(&path, &good).unwrap();
    assert!(tokens.refresh(), "and a mended one is read again");
    assert!(is_known());
}
