//! The binary as a newcomer uses it, and as a fault uses it.

#![expect(clippy::unwrap_used, reason = "a test that fails should say where")]

use std::path::Path;
use std::process::{Command, Output};

fn hapax(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hapax"))
        .args(arguments)
        .current_dir(directory)
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap()
}

fn succeeds(directory: &Path, arguments: &[&str]) -> String {
    let output = hapax(directory, arguments);
    let (told, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {told}\n{error}");
    told
}

fn fails(directory: &Path, arguments: &[&str]) -> String {
    let output = hapax(directory, arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", text(&output.stdout));
    text(&output.stderr)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a1_fifty_kills_lose_nothing_and_double_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let told = succeeds(directory.path(), &["demo", "--kills", "50", "--life-ms", "40"]);
    assert!(told.contains("0 lost, 0 doubled, every receipt is the first one."), "{told}");
    let killed = told.lines().filter(|line| line.contains("killed after")).count();
    assert_eq!(killed, 50, "{told}");
    let accepted = told.lines().find(|line| line.contains("orders accepted")).unwrap();
    let orders: u64 = accepted.split(' ').next().unwrap().parse().unwrap();
    assert!(orders > 1_000, "there was work under way: {accepted}");
    assert!(succeeds(directory.path(), &["check", "hapax-data"]).contains("is sound"));
}

#[test]
fn a_demo_goes_on_with_the_data_of_the_one_before() {
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let told = succeeds(directory.path(), &["demo", "--kills", "2", "--life-ms", "40"]);
        assert!(told.contains("0 lost, 0 doubled"), "{told}");
    }
}

#[test]
fn a20_what_is_backed_up_and_restored_is_sound_and_complete() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    succeeds(path, &["demo", "--kills", "1", "--life-ms", "40"]);
    let backed_up = succeeds(path, &["backup", "hapax-data", "copy"]);
    assert!(backed_up.contains("verified"), "{backed_up}");
    succeeds(path, &["restore", "copy", "back"]);
    assert!(succeeds(path, &["check", "back"]).contains("is sound"));
    let error = fails(path, &["backup", "hapax-data", "copy"]);
    assert!(error.contains("copy"), "a target that is taken is refused: {error}");
    let told = succeeds(path, &["demo", "--data", "back", "--kills", "1", "--life-ms", "40"]);
    assert!(told.contains("0 lost, 0 doubled"), "{told}");
}

#[test]
fn a4_a_damaged_directory_is_refused_by_file_and_place_and_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    succeeds(path, &["demo", "--kills", "1", "--life-ms", "40"]);
    let segment = path.join("hapax-data").join("journal-00000001.seg");
    let mut bytes = std::fs::read(&segment).unwrap();
    let place = bytes.windows(8).position(|window| window == b"order-20").unwrap();
    *bytes.get_mut(place).unwrap() ^= 0x10;
    std::fs::write(&segment, &bytes).unwrap();
    let error = fails(path, &["demo", "--kills", "1"]);
    assert!(error.contains("journal-00000001.seg is damaged at byte"), "{error}");
    assert_eq!(std::fs::read(&segment).unwrap(), bytes, "nothing was changed");
    let output = hapax(path, &["check", "hapax-data"]);
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
}
