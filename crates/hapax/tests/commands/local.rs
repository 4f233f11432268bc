//! Data directories: the demo that is killed on one, checks, backups, restores.

use std::path::Path;
use std::process::Output;

use crate::broker::{Broker, Told};
use hapax_testing::{Setup, Signal, signal};

fn hapax(directory: &Path, arguments: &[&str]) -> Output {
    crate::broker::hapax(directory).args(arguments).output().unwrap()
}

fn succeeds(directory: &Path, arguments: &[&str]) -> String {
    let output = hapax(directory, arguments);
    let (told, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {told}\n{error}");
    told
}

fn fails(directory: &Path, arguments: &[&str]) -> String {
    fails_with(1, directory, arguments)
}

fn fails_with(code: i32, directory: &Path, arguments: &[&str]) -> String {
    let output = hapax(directory, arguments);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output.stdout));
    text(&output.stderr)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a1_fifty_kills_lose_nothing_and_double_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let told = succeeds(directory.path(), &["demo", "--kills", "50", "--life-ms", "40"]);
    assert!(told.contains("0 lost, 0 processed twice, every receipt is the first one."), "{told}");
    let killed = told.lines().filter(|line| line.contains("killed after")).count();
    assert_eq!(killed, 50, "{told}");
    let accepted = told.lines().find(|line| line.contains("orders accepted")).unwrap();
    let orders: u64 = accepted.split(' ').next().unwrap().parse().unwrap();
    assert!(orders > 1_000, "there was work under way: {accepted}");
    assert!(succeeds(directory.path(), &["check", "hapax-demo"]).contains("is sound"));
}

#[test]
fn a_demo_goes_on_with_the_data_of_the_one_before() {
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let told = succeeds(directory.path(), &["demo", "--kills", "2", "--life-ms", "40"]);
        assert!(told.contains("0 lost, 0 processed twice"), "{told}");
    }
}

#[test]
fn a20_what_is_backed_up_and_restored_is_sound_and_complete() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    succeeds(path, &["demo", "--kills", "1", "--life-ms", "40"]);
    let backed_up = succeeds(path, &["backup", "hapax-demo", "copy"]);
    assert!(backed_up.contains("verified"), "{backed_up}");
    succeeds(path, &["restore", "copy", "back"]);
    assert!(succeeds(path, &["check", "back"]).contains("is sound"));
    let error = fails_with(2, path, &["backup", "hapax-demo", "copy"]);
    assert!(error.contains("copy"), "a target that is taken is refused: {error}");
    let told = succeeds(path, &["demo", "--data", "back", "--kills", "1", "--life-ms", "40"]);
    assert!(told.contains("0 lost, 0 processed twice"), "{told}");
}

#[test]
fn a4_a_damaged_directory_is_refused_by_file_and_place_and_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    succeeds(path, &["demo", "--kills", "1", "--life-ms", "40"]);
    let segment = path.join("hapax-demo").join("journal-00000001.seg");
    let mut bytes = std::fs::read(&segment).unwrap();
    let place = bytes.windows(8).position(|window| window == b"order-20").unwrap();
    *bytes.get_mut(place).unwrap() ^= 0x10;
    std::fs::write(&segment, &bytes).unwrap();
    let error = fails(path, &["demo", "--kills", "1"]);
    assert!(error.contains("journal-00000001.seg is damaged at byte"), "{error}");
    assert_eq!(std::fs::read(&segment).unwrap(), bytes, "nothing was changed");
    let output = hapax(path, &["check", "hapax-demo"]);
    assert!(text(&output.stdout).contains("DAMAGE"), "{}", text(&output.stdout));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_directory_that_is_not_there_or_not_ours_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    assert!(fails(path, &["check", "nowhere"]).contains("nowhere"));
    assert!(fails(path, &["backup", "nowhere", "copy"]).contains("nowhere"));
    assert!(!path.join("nowhere").exists(), "asking creates nothing");
    std::fs::create_dir(path.join("empty")).unwrap();
    std::fs::create_dir(path.join("other")).unwrap();
    std::fs::write(path.join("other/passwd"), "x").unwrap();
    for folder in ["empty", "other"] {
        for arguments in [&["check", folder][..], &["backup", folder, "copy"]] {
            let error = fails(path, arguments);
            assert!(error.contains("is not a data directory"), "{arguments:?}: {error}");
            assert!(!error.contains("DAMAGE") && !path.join("copy").exists(), "{error}");
        }
        let error = fails(path, &["restore", folder, "copy"]);
        assert!(error.contains("is not a data directory"), "{error}");
    }
    assert_eq!(std::fs::read_dir(path.join("empty")).unwrap().count(), 0, "nothing was made");
    assert_eq!(std::fs::read_dir(path.join("other")).unwrap().count(), 1, "nothing was made");
}

/// A broker that has done something, stopped.
fn stopped_data() -> Setup {
    let broker = Broker::start_of(3);
    broker.ok(&["queue", "create", "orders"]);
    for number in 0..20 {
        broker.ok(&["send", "orders", "x", "--key", &format!("order-{number}")]);
    }
    broker.ok(&["receive", "orders", "--max", "10", "--ack"]);
    let token = ["token", "create", "--data", "data", "--can", "send", "--name", "shop"];
    succeeds(&broker.path(), &token);
    broker.stop()
}

#[test]
fn a20_the_data_of_a_broker_is_backed_up_whole_and_restored_with_its_secret_and_tokens() {
    let stopped = stopped_data();
    let path = stopped.path();
    let told = succeeds(path, &["check", "data"]);
    assert_eq!(told.matches("closed in good order").count(), 3, "three partitions: {told}");
    succeeds(path, &["backup", "data", "copies/monday"]);
    let error = fails_with(2, path, &["backup", "data", "copies/monday"]);
    assert!(error.contains("not empty"), "{error}");
    let told = succeeds(path, &["restore", "copies/monday", "back"]);
    assert!(told.contains("with the broker's secret and tokens:"), "{told}");
    std::fs::remove_file(path.join("copies/monday/tokens.json")).unwrap();
    let told = succeeds(path, &["restore", "copies/monday", "tokenless"]);
    assert!(told.contains("with the broker's secret:"), "it has no tokens: {told}");
    for name in ["secret", "tokens.json"] {
        let read = |folder: &str| std::fs::read(path.join(folder).join(name)).unwrap();
        assert_eq!(read("data"), read("back"), "{name}");
    }
    let head = std::fs::read_to_string(path.join("back/broker.json")).unwrap();
    assert!(head.contains("copy"), "until it is opened it is a copy: {head}");
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(path.join("back/secret")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "the secret stays one");
    let directory = tempfile::tempdir().unwrap();
    std::fs::rename(path.join("back"), directory.path().join("data")).unwrap();
    let broker = Broker::start_in(directory, &["--auth", "off"]);
    let stats = broker.json(&["queue", "show", "orders"])["stats"].clone();
    assert_eq!((&stats["ready"], &stats["done_total"]), (&10.into(), &10.into()));
    assert!(broker.ok(&["send", "orders", "x", "--key", "order-3"]).contains("order-3"));
    let stats = broker.json(&["queue", "show", "orders"])["stats"].clone();
    assert_eq!(stats["sent_total"], 20, "its keys came along");
}

#[test]
fn a_running_broker_is_backed_up_while_it_goes_on() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders"]);
    broker.ok(&["send", "orders", "x", "--key", "before"]);
    let told = broker.ok(&["backup", "--online", "copy"]);
    assert!(told.contains("verified"), "{told}");
    broker.ok(&["send", "orders", "x", "--key", "after"]);
    assert!(succeeds(&broker.path(), &["check", "copy"]).contains("copy is sound"));
    let error = broker.run(&["check", "data"]);
    assert_eq!(error.code, Some(1), "{error:?}");
    assert!(error.err.contains("in use") && error.err.contains("--online"), "{error:?}");
    for arguments in [&["backup", "--online", "copy"][..], &["restore", "data", "copy"]] {
        let taken = broker.run(arguments);
        assert_eq!(taken.code, Some(2), "the target is taken: {taken:?}");
        assert!(taken.err.contains("copy"), "{taken:?}");
    }
    let directory = tempfile::tempdir().unwrap();
    std::fs::rename(broker.path().join("copy"), directory.path().join("data")).unwrap();
    let second = Broker::start_in(directory, &["--auth", "off"]);
    assert_eq!(second.json(&["get", "orders", "before"])["state"], "ready");
    assert_eq!(second.run(&["get", "orders", "after"]).code, Some(3), "a state of one moment");
}

#[test]
fn damage_in_one_partition_of_a_broker_is_found_and_told_as_json() {
    let stopped = stopped_data();
    let path = stopped.path();
    let segment = path.join("data/partition-0001/journal-00000001.seg");
    let mut bytes = std::fs::read(&segment).unwrap();
    let place = bytes.windows(6).position(|window| window == b"order-").unwrap();
    *bytes.get_mut(place).unwrap() ^= 0x10;
    std::fs::write(&segment, &bytes).unwrap();
    let told = Told::of(&hapax(path, &["check", "data", "-o", "json"]));
    assert_eq!(told.code, Some(1));
    let shape: serde_json::Value = serde_json::from_str(&told.out).unwrap();
    assert_eq!(shape["sound"], false);
    assert_eq!(shape["partitions"].as_array().unwrap().len(), 3);
    assert_eq!(shape["partitions"][0]["damages"], 0);
    assert_eq!(shape["partitions"][1]["findings"][0]["severity"], "damage");
}

#[test]
fn a_broker_in_development_says_what_to_try_next() {
    use std::io::BufRead;
    let directory = tempfile::tempdir().unwrap();
    let mut child = crate::broker::hapax(directory.path())
        .args(["dev", "--listen", "127.0.0.1:0", "--log", "off"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    let mut said = String::new();
    while !said.contains("Ctrl-C") {
        said.push_str(&lines.next().unwrap().unwrap());
        said.push('\n');
    }
    signal(child.id(), Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(said.contains("http://127.0.0.1:") && said.contains("/metrics"), "{said}");
    for command in ["queue create orders", "send orders", "work orders --exec"] {
        assert!(said.contains(command), "{said}");
    }
    assert!(directory.path().join("hapax-data/broker.json").exists());
}
