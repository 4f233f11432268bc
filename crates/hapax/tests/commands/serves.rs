//! Starting a broker: what it refuses, and the way to it over TLS.

use hapax_testing::{Setup, printed};

use crate::broker::{Broker, Printed, hapax};

#[test]
fn a_broker_does_not_listen_beyond_loopback_without_tokens_or_tls_unless_told() {
    let directory = tempfile::tempdir().unwrap();
    let serve = |arguments: &[&str]| {
        let mut command = hapax(directory.path());
        command.args(["serve", "--listen", "0.0.0.0:0", "--data", "data"]).args(arguments);
        Printed::of(&command.output().unwrap())
    };
    let told = serve(&["--auth", "off", "--allow-no-tls"]);
    assert!(told.code == Some(2) && told.err.contains("no-auth"), "{told:?}");
    let told = serve(&[]);
    assert!(told.code == Some(2) && told.err.contains("no-tls"), "{told:?}");
    assert!(!directory.path().join("data").exists(), "nothing was made");
}

#[test]
fn a_second_broker_on_the_same_data_or_port_is_refused() {
    let broker = Broker::start();
    let serve = |arguments: &[&str]| {
        let mut command = hapax(&broker.path());
        command.args(["serve", "--auth", "off"]).args(arguments);
        Printed::of(&command.output().unwrap())
    };
    let told = serve(&["--data", "data", "--listen", "127.0.0.1:0"]);
    assert!(told.code == Some(1) && told.err.contains("data"), "{told:?}");
    let port = broker.url.trim_start_matches("http://").to_owned();
    let told = serve(&["--data", "other", "--listen", &port]);
    assert!(told.code == Some(1) && told.err.contains(&port), "{told:?}");
    broker.ok(&["queue", "ls"]);
}

#[test]
fn a_settings_file_that_is_found_is_told_in_the_log() {
    let broker = Broker::start();
    std::fs::write(broker.path().join("hapax.toml"), "auth = \"off\"\n").unwrap();
    let mut command = hapax(&broker.path());
    // The data is taken: it ends by itself.
    command.args(["serve", "--data", "data", "--listen", "127.0.0.1:0", "--log", "info"]);
    let told = Printed::of(&command.output().unwrap());
    let log = format!("{}{}", told.out, told.err);
    let file = log.lines().find(|line| line.contains("the settings file was read"));
    assert!(file.is_some_and(|line| line.contains("hapax.toml")), "{told:?}");
}

#[test]
fn a_queue_that_the_settings_change_back_is_named_in_the_log_with_the_fields() {
    let directory = tempfile::tempdir().unwrap();
    let settings = "auth = \"off\"\n[queues.orders]\nmax_attempts = 3\n";
    std::fs::write(directory.path().join("hapax.toml"), settings).unwrap();
    let setup = Setup::temporary(env!("CARGO_BIN_EXE_hapax"), directory);
    let setup = setup.arguments(&[]);
    const LINE: &str = "the settings overwrote the queue's configuration";
    let broker = setup.start();
    let told = broker.command(&["queue", "set", "orders", "--max-attempts", "5"]).output().unwrap();
    assert!(told.status.success(), "{}", printed(&told));
    let setup = broker.stop();
    assert!(!setup.log().contains(LINE), "{}", setup.log());
    setup.start().stop();
    let log = setup.log();
    let line = log.lines().find(|line| line.contains(LINE)).unwrap_or_else(|| panic!("{log}"));
    assert!(line.contains("orders") && line.contains("max_attempts"), "{line}");
    assert!(!line.contains("lease_ms"), "{line}");
    // As they are now, nothing is overwritten.
    let before = log.matches(LINE).count();
    setup.start().stop();
    assert_eq!(setup.log().matches(LINE).count(), before);
}

/// What `hapax queue ls` says about this server.
fn look_at(server: &str, arguments: &[&str]) -> Printed {
    let directory = tempfile::tempdir().unwrap();
    let mut command = hapax(directory.path());
    command.args(["queue", "ls", "--server", server]).args(arguments);
    Printed::of(&command.output().unwrap())
}

#[test]
fn a_certificate_of_an_authority_is_told_from_one_of_a_server() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    // As `openssl req -x509` makes it.
    let mut request = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    request.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    std::fs::write(path.join("cert.pem"), request.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(path.join("key.pem"), key.serialize_pem()).unwrap();
    let tls = ["--auth", "off", "--tls-cert", "cert.pem", "--tls-key", "key.pem"];
    let broker = Broker::start_in(directory, &tls);
    let port = broker.url.rsplit(':').next().unwrap();
    let certificate = path.join("cert.pem");
    let server = format!("https://localhost:{port}");
    let told = look_at(&server, &["--ca", certificate.to_str().unwrap()]);
    assert!(told.code == Some(6) && told.err.contains("CA:FALSE"), "{told:?}");
}

#[test]
fn what_is_no_broker_is_told_as_such() {
    use std::io::{Read, Write};
    let broker = Broker::start();
    let https = broker.url.replace("http://", "https://");
    let told = look_at(&https, &[]);
    assert!(told.code == Some(6) && told.err.contains("use http://"), "{told:?}");

    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", server.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in server.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1_024]);
            let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let told = look_at(&url, &[]);
    assert_eq!(told.code, Some(6), "{told:?}");
    assert!(told.err.contains("is not a Hapax broker: 404 Not Found"), "{told:?}");
    assert!(told.err.contains("check --server"), "{told:?}");
}

#[test]
fn data_and_backups_are_for_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    fn modes(path: &std::path::Path, found: &mut Vec<(std::path::PathBuf, u32)>) {
        let mode = std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        found.push((path.to_owned(), mode));
        if path.is_dir() {
            for entry in std::fs::read_dir(path).unwrap() {
                modes(&entry.unwrap().path(), found);
            }
        }
    }
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders"]);
    broker.ok(&["send", "orders", "x", "--key", "a"]);
    broker.ok(&["backup", "--online", "copy"]);
    broker.ok(&["restore", "copy", "back"]);
    let mut found = Vec::new();
    for name in ["data", "copy", "back"] {
        modes(&broker.path().join(name), &mut found);
    }
    assert!(found.len() > 12, "{found:?}");
    for (path, mode) in found {
        let expected = if path.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode, expected, "{}: {mode:o}", path.display());
    }
}

#[test]
fn commands_reach_a_broker_over_tls_if_they_trust_its_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(directory.path().join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(directory.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let tls = ["--auth", "off", "--tls-cert", "cert.pem", "--tls-key", "key.pem"];
    let broker = Broker::start_in(directory, &tls);
    let port = broker.url.rsplit(':').next().unwrap().to_owned();
    let server = format!("https://localhost:{port}");
    let run = |arguments: &[&str]| {
        let mut command = hapax(&broker.path());
        command.args(["queue", "ls", "-o", "json", "--server", &server]).args(arguments);
        Printed::of(&command.output().unwrap())
    };
    let told = run(&["--ca", "cert.pem"]);
    assert!(told.code == Some(0) && told.out.trim() == "[]", "{told:?}");
    let stranger = run(&[]);
    assert_eq!(stranger.code, Some(6), "nobody vouched for it: {stranger:?}");
    assert!(stranger.err.contains("--ca FILE"), "{stranger:?}");
    let plain = Printed::of(&broker.command(&["queue", "ls"]).output().unwrap());
    assert_eq!(plain.code, Some(6), "{plain:?}");
    assert!(plain.err.contains("it speaks TLS: use https://"), "{plain:?}");
    let missing = run(&["--ca", "nowhere.pem"]);
    assert!(missing.code == Some(2) && missing.err.contains("nowhere.pem"), "{missing:?}");
}
