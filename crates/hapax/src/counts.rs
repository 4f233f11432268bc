//! Parsers of counts on the command line. A count of 0 is refused, since no command can do
//! nothing in a useful way.

use std::str::FromStr;

use clap::builder::RangedU64ValueParser;

/// A count of at least 1.
pub(crate) fn any<T>(text: &str) -> Result<T, String>
where
    T: FromStr<Err: std::fmt::Display> + Default + PartialEq,
{
    let count = text.parse::<T>().map_err(|error| error.to_string())?;
    if count == T::default() { Err("it must be at least 1".to_owned()) } else { Ok(count) }
}

/// A count from 1 to `max`.
pub(crate) fn up_to<T: TryFrom<u64>>(max: u64) -> RangedU64ValueParser<T> {
    RangedU64ValueParser::new().range(1..=max)
}
