//! A list of statuses, as `--release` takes it: `408,429,5xx`.

use std::str::FromStr;

use hapax_idempotency::{Policy, Remember};

/// Statuses, as single numbers or as classes such as 5xx.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Statuses(Vec<std::ops::RangeInclusive<u16>>);

impl Statuses {
    /// These are released, all others are kept.
    pub(super) fn policy(&self) -> Policy {
        let statuses = self.clone();
        Policy::new(move |status, _| match statuses.contains(status.as_u16()) {
            true => Remember::Release,
            false => Remember::Keep,
        })
    }

    fn contains(&self, status: u16) -> bool {
        self.0.iter().any(|range| range.contains(&status))
    }
}

impl FromStr for Statuses {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(Vec::new()));
        }
        let ranges = text.split(',').map(str::trim).map(|part| {
            let bad = || format!("{part:?} is not a status: write 408,429,5xx, or none");
            let (first, last) = match part.strip_suffix("xx") {
                Some(hundred) => {
                    let hundred: u16 = hundred.parse().map_err(|_| bad())?;
                    (hundred.saturating_mul(100), hundred.saturating_mul(100).saturating_add(99))
                }
                None => {
                    let status = part.parse().map_err(|_| bad())?;
                    (status, status)
                }
            };
            match first >= 200 && last <= 599 {
                true => Ok(first..=last),
                false => Err(bad()),
            }
        });
        ranges.collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_read_one_by_one_and_by_the_hundred() {
        let statuses: Statuses = "401, 408,5xx".parse().unwrap();
        for (status, is_in) in [(401, true), (408, true), (500, true), (599, true), (400, false)] {
            assert_eq!(statuses.contains(status), is_in, "{status}");
        }
        assert!(!"none".parse::<Statuses>().unwrap().contains(500));
    }

    #[test]
    fn what_is_no_status_is_refused() {
        for text in ["", "4", "x", "5x", "99", "1xx", "600", "6xx", "65535xx", "401;402"] {
            assert!(text.parse::<Statuses>().is_err(), "{text}");
        }
    }
}
