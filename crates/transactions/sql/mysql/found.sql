-- Found: a fence above yours means that you are late: roll back, and settle nothing. Otherwise
-- the effect is there: roll back, and settle done with this result. LOCK IN SHARE MODE, since a
-- plain read may not see what was committed after your transaction began. No row: enter again.
SELECT fence, result, result_type FROM hapax_inbox
WHERE consumer = ? AND tenant = ? AND queue = ?
  AND message_key = ? AND message_group = ? AND generation = ?
LOCK IN SHARE MODE
